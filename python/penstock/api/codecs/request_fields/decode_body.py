"""Decodes a request body into the schema type that also describes it in OpenAPI."""

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
    """Return the JSON object in `body` as an instance of the msgspec struct `kind`.

    An absent field and null mean the same; unknown fields are ignored unless `kind` forbids them; a
    boolean is not accepted as a number. `prepare` may change the parsed object in place before the
    conversion. Raises InvalidRequest for invalid JSON (see `json_body.parse_object`), and for a
    wrong field, with its path in the body.
    """
    with without_collection(count_containers(body)):
        values = parse_object(body)
        if prepare is not None:
            prepare(values)
        decoded: _T = decode_value(values, kind)
        return decoded


def decode_value(value: Any, kind: Any, path: str = "") -> Any:
    """Return a parsed JSON value as an instance of `kind`, any type that msgspec supports.

    `path`: the path of the value in the body, for errors. A whole float such as 3.0 is accepted as
    an integer (JSON Schema 2020-12, 6.1.1), because some clients cannot send integers. Raises
    InvalidRequest.
    """
    while True:
        try:
            return msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            if not mend_whole_numbers(error, value):
                raise invalid_request(error, value, kind, path) from None


def model_of(body: bytes) -> str | None:
    """Return the `model` of a body; None if it is absent. Wrong values in other fields are ignored.
    Raises InvalidRequest."""
    return decode_body(body, _ModelField).model
