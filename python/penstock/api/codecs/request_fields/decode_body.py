"""Decodes a request body with the schema type that also describes it in OpenAPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.api.codecs.request_fields.json_body import (
    count_containers,
    parse_object,
    without_collection,
)
from penstock.api.codecs.request_fields.schema_errors import invalid_request, mend_whole_numbers

_T = TypeVar("_T")


class _ModelField(msgspec.Struct):
    model: str | None = None


def decode_body(
    body: bytes, kind: type[_T], prepare: Callable[[dict[str, Any]], object] | None = None
) -> _T:
    """Return the JSON object in `body` as a `kind`, a msgspec struct.

    An absent field and a null are the same; unknown fields are ignored; booleans are not numbers.
    `prepare` may change the parsed object in place before it is converted. Raises InvalidRequest
    (see `json_body.parse_object`), which names the field that is wrong as the client wrote it.
    """
    with without_collection(count_containers(body)):
        values = parse_object(body)
        if prepare is not None:
            prepare(values)
        decoded: _T = decode_value(values, kind)
        return decoded


def decode_value(value: Any, kind: Any, path: str = "") -> Any:
    """Return a parsed JSON value as a `kind`, which is any type that msgspec knows.

    `path`: the place of the value in the body, for errors. 3.0 is an integer too (JSON Schema
    2020-12, 6.1.1): clients without integers send it.
    """
    while True:
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            if not mend_whole_numbers(error, value):
                raise invalid_request(error, value, kind, path) from None


def model_of(body: bytes) -> str | None:
    """Return the model that a body names, even if other fields are wrong. Raises InvalidRequest."""
    return decode_body(body, _ModelField).model
