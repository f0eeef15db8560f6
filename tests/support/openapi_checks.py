"""Checks answers against the served OpenAPI document: status, content type and schema, strictly."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx
from jsonschema import Draft202012Validator
from starlette.routing import compile_path

from penstock.api.docs.openapi import PARAMETER, build_document
from penstock.api.route_table.table import OPERATIONS

# Answers that the server gives outside its routes belong to no operation.
AROUND = (405, 431)


@cache
def strict_document() -> dict[str, Any]:
    """The description with every object closed: what an answer holds beyond it is a mistake."""
    document = build_document(OPERATIONS)
    for schema in document["components"]["schemas"].values():
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
    return document


@cache
def validator_of(path: str, method: str, status: str, media: str) -> Draft202012Validator:
    """Return a validator for the body of one kind of answer."""
    document = strict_document()
    responses = document["paths"][path][method]["responses"]
    assert status in responses, f"{method} {path}: {status} is not in the OpenAPI document"
    content = responses[status]["content"]
    assert media in content or "*/*" in content, (
        f"{method} {path}: {media} is not in the OpenAPI document"
    )
    schema = content.get(media, {}).get("schema", {})
    return Draft202012Validator({**schema, "components": document["components"]})


@cache
def validator_of_type(name: str) -> Draft202012Validator:
    """Return a validator for a component, such as a chunk of a stream."""
    document = strict_document()
    ref = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return Draft202012Validator(ref)


def check_event(union: str, event: dict[str, Any]) -> None:
    """Validate the data of an event against its type in the document's union."""
    kinds = strict_document()["components"]["schemas"][union]["discriminator"]["mapping"]
    assert event["type"] in kinds, f"{event['type']} is not in the OpenAPI document"
    validator_of_type(kinds[event["type"]].rpartition("/")[2]).validate(event)


def described_path(method: str, path: str) -> str | None:
    """Return the path template that a request matched; None if it is no operation."""
    for operation in OPERATIONS:
        regex, _, _ = compile_path(operation.path)
        if operation.method == method and regex.match(path):
            return PARAMETER.sub(r"{\1}", operation.path)
    return None


async def check_answer(answer: httpx.Response) -> None:
    """Validate an answer, as an event hook of an HTTP client. Streams are checked only for status
    and type."""
    request = answer.request
    path = described_path(request.method, request.url.path)
    if path is None or answer.status_code in (*AROUND, 304):
        return
    media = answer.headers.get("content-type", "").partition(";")[0]
    if not media and not await answer.aread():
        return
    validator = validator_of(path, request.method.lower(), str(answer.status_code), media)
    if media == "application/json":
        await answer.aread()
        validator.validate(answer.json())
