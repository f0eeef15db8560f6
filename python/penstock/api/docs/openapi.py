"""Builds the OpenAPI 3.1.0 document from the schema types and the route table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.api.route_table.operation import ANY_MEDIA, JSON, TEXT, Operation
from penstock.api.schema.responses.input_items import UNTAGGED

REF: Final = "#/components/schemas/{name}"
PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
DESCRIPTION: Final = """\
Serves language models. An absent field and a null are the same. Unknown fields are accepted and
ignored. There is no authentication: an `Authorization` header is accepted and ignored.
"""


def build_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI document of `operations`, as JSON values."""
    types = _types(operations)
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = dict(zip(types, schemas, strict=True))
    for name, type_ in (event for operation in operations for event in operation.events):
        components.setdefault(name, schema_of[type_])
    _make_tags_optional(components)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        path = PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, schema_of)
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
    """Return the types that the operations use, without duplicates, in the order of first use."""
    used: dict[Any, None] = {}
    for operation in operations:
        for types in (operation.request, operation.response, operation.error):
            used |= dict.fromkeys(_as_tuple(types))
        used |= dict.fromkeys(type_ for _, type_ in operation.events)
    return [*used]


def _as_tuple(types: Any) -> tuple[Any, ...]:
    """Return `types` as a tuple: () for None, and a single type as a tuple of one."""
    if isinstance(types, tuple):
        return types
    return () if types is None else (types,)


def _schema(types: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    schemas: list[dict[str, Any]] = [schema_of[type_] for type_ in _as_tuple(types)]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _make_tags_optional(value: Any) -> None:
    """Make the field `type` of the UNTAGGED types optional, and remove the discriminators of unions
    that contain these types. `value`: component name -> JSON schema, changed in place."""
    names = {type_.__name__ for type_ in UNTAGGED}
    for name in names & value.keys():
        value[name]["required"].remove("type")
    refs = {REF.format(name=name) for name in names}
    for schema in _nested(value):
        if refs & set(schema.get("discriminator", {}).get("mapping", {}).values()):
            del schema["discriminator"]


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    """Yield `value` and every JSON object nested within it, outermost first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _nested(inner)


def _describe(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI Operation Object of an operation."""
    described: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "responses": _responses(operation, schema_of),
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(operation.path)
    ]
    parameters += [
        {
            "name": field.name,
            "in": "query",
            "description": field.description,
            "schema": field.schema,
        }
        for field in operation.query
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.request is not None:
        body: dict[str, Any] = {"schema": _schema(operation.request, schema_of)}
        if operation.example is not None:
            body["example"] = operation.example
        content = {operation.request_media: body}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    """Return the OpenAPI Responses Object of an operation: its success, then each error status."""
    body: dict[str, Any] = {"schema": {"type": "string"}}
    if operation.response is not None:
        body = {"schema": _schema(operation.response, schema_of)}
    elif operation.media in (JSON, ANY_MEDIA):
        body = {}
    content = {operation.media: body} if operation.media is not None else {}
    description = operation.summary
    if operation.events:
        names = " or ".join(f"`{name}`" for name, _ in operation.events)
        # No schema: it would describe the bytes of the stream, not the data of the events.
        content["text/event-stream"] = {}
        description += f". With `stream`: events whose data is a {names}"
    success = str(operation.status)
    responses: dict[str, Any] = {success: {"description": description}}
    if content:
        responses[success]["content"] = content
    error: dict[str, Any] = {TEXT: {"schema": {"type": "string"}}}
    if operation.error is not None:
        error = {JSON: {"schema": _schema(operation.error, schema_of)}}
    for status in sorted(set(operation.errors)):
        responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}
    return responses
