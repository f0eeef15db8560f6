"""The OpenAPI 3.1.0 description, made from the wire types and the table of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.api.operations import JSON, OPERATIONS, TEXT, Operation, phrase

REF: Final = "#/components/schemas/{name}"
PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
DESCRIPTION: Final = """\
Serves language models. An absent field and a null are the same; fields that are named nowhere are
accepted and ignored. No authentication: an `Authorization` header is accepted and ignored.
"""


def build_document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """The whole description, as JSON values."""
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    named = [t for o in operations for t in (o.request, o.answer, o.events, o.error)]
    return [*dict.fromkeys(t for t in named if t is not None)]


def _operation(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(operation, schema_of),
    }
    names = PARAMETER.findall(operation.path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if operation.request is not None:
        content = {operation.request_media: {"schema": schema_of[operation.request]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"schema": {"type": "string"}}
    if operation.answer is not None:
        good = {"schema": schema_of[operation.answer]}
    elif operation.media in (JSON, "*/*"):
        good = {}
    content = {operation.media: good} if operation.media is not None else {}
    description = operation.summary
    if operation.events is not None:
        name = schema_of[operation.events]["$ref"].rpartition("/")[2]
        content["text/event-stream"] = {"schema": {"type": "string"}}
        description += f". With `stream`: events whose data is a `{name}`"
    responses: dict[str, Any] = {"200": {"description": description}}
    if content:
        responses["200"]["content"] = content
    error: dict[str, Any] = {TEXT: {"schema": {"type": "string"}}}
    if operation.error is not None:
        error = {JSON: {"schema": schema_of[operation.error]}}
    for status in operation.statuses:
        responses[str(status)] = {"description": phrase(status), "content": error}
    return responses
