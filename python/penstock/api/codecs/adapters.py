"""Decodes the bodies of the adapter routes. Unlike other routes, these refuse unknown fields."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.schema.adapters import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from penstock.base.errors import InvalidRequest, ServiceError

_T = TypeVar("_T")


class InvalidBody(ServiceError):
    """The body is JSON but does not match the route's schema."""

    status = 422
    kind = "invalid_request_error"
    code = "invalid_request_body"


class WrongContentType(ServiceError):
    """The request's content type is not application/json."""

    status = 415
    kind = "invalid_request_error"
    code = "invalid_content_type"


class LoadRequest(msgspec.Struct, frozen=True):
    """The decoded body of `POST /v1/load_lora_adapter`. `expected`: the generation that the alias
    must currently name, None for any."""

    name: str
    path: str
    replace: bool
    expected: str | None
    model: str | None


class UnloadRequest(msgspec.Struct, frozen=True):
    """The decoded body of `POST /v1/unload_lora_adapter`. `expected`: the generation that the alias
    must currently name, None for any."""

    name: str
    expected: str | None
    model: str | None


def decode_load(body: bytes, content_type: bytes) -> LoadRequest:
    """Decode a load request. Raises WrongContentType, InvalidRequest (`malformed_json`) and
    InvalidBody."""
    asked = _decode(body, content_type, LoadLoraAdapterRequest)
    replace, alias = asked.load_inplace, asked.replace
    if replace is not None and alias is not None and replace != alias:
        raise InvalidBody(
            "`replace` differs from `load_inplace`; send only one of them", field="replace"
        )
    return LoadRequest(
        name=asked.lora_name,
        path=asked.lora_path,
        replace=bool(replace or alias),
        expected=asked.expected_generation,
        model=asked.model,
    )


def decode_unload(body: bytes, content_type: bytes) -> UnloadRequest:
    """Decode an unload request. Raises WrongContentType, InvalidRequest (`malformed_json`) and
    InvalidBody."""
    asked = _decode(body, content_type, UnloadLoraAdapterRequest)
    return UnloadRequest(asked.lora_name, asked.expected_generation, asked.model)


def _decode(body: bytes, content_type: bytes, kind: type[_T]) -> _T:
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise WrongContentType("the content type must be application/json")
    try:
        return decode_body(body, kind)
    except InvalidRequest as error:
        if error.code == "invalid_json":
            raise InvalidRequest(error.message, code="malformed_json") from None
        raise InvalidBody(error.message, field=error.field) from None
