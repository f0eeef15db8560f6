"""The OpenAPI 3.1.0 description, made from the schema types and the table of operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from penstock import __version__
from penstock.api.docs.examples import EXAMPLES
from penstock.api.docs.operation import JSON, TEXT, Operation, phrase
from penstock.api.docs.operations import OPERATIONS
from penstock.api.schema.responses.input_items import UNTAGGED

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
    for name, type_ in (event for operation in operations for event in operation.events):
        components.setdefault(name, schema_of[type_])
    _open_tags(components)
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
    named: dict[Any, None] = {}
    for operation in operations:
        for types in (operation.request, operation.answer, operation.error):
            named |= dict.fromkeys(_each(types))
        named |= dict.fromkeys(type_ for _, type_ in operation.events)
    return [*named]


def _each(types: Any) -> tuple[Any, ...]:
    """Of an operation's field: no type, one or several."""
    if isinstance(types, tuple):
        return types
    return () if types is None else (types,)


def _schema(types: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    schemas: list[dict[str, Any]] = [schema_of[type_] for type_ in _each(types)]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _open_tags(value: Any) -> None:
    """Let the types of UNTAGGED leave their tag out, in place; no discriminator tells them then."""
    names = {type_.__name__ for type_ in UNTAGGED}
    for name in names & value.keys():
        value[name]["required"].remove("type")
    refs = {REF.format(name=name) for name in names}
    for schema in _nested(value):
        if refs & set(schema.get("discriminator", {}).get("mapping", {}).values()):
            del schema["discriminator"]


def _nested(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from _nested(inner)


def _operation(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
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
        if operation.id in EXAMPLES:
            body["example"] = EXAMPLES[operation.id]
        content = {operation.request_media: body}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _responses(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    good: dict[str, Any] = {"schema": {"type": "string"}}
    if operation.answer is not None:
        good = {"schema": _schema(operation.answer, schema_of)}
    elif operation.media in (JSON, "*/*"):
        good = {}
    content = {operation.media: good} if operation.media is not None else {}
    description = operation.summary
    if operation.events:
        names = " or ".join(f"`{name}`" for name, _ in operation.events)
        content["text/event-stream"] = {}  # a schema there is of frames, not of their data
        description += f". With `stream`: events whose data is a {names}"
    responses: dict[str, Any] = {"200": {"description": description}}
    if content:
        responses["200"]["content"] = content
    error: dict[str, Any] = {TEXT: {"schema": {"type": "string"}}}
    if operation.error is not None:
        error = {JSON: {"schema": _schema(operation.error, schema_of)}}
    for status in operation.statuses:
        responses[str(status)] = {"description": phrase(status), "content": error}
    return responses
