"""The bodies of the adapter routes. Unlike elsewhere, a field that is not known is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from penstock.api.codecs.request_fields.fields import Fields, decode_object
from penstock.base.errors import InvalidRequest, ServiceError

LOAD_FIELDS: Final = (
    "lora_name",
    "lora_path",
    "load_inplace",
    "replace",
    "expected_generation",
    "model",
    "is_3d_lora_weight",
)
UNLOAD_FIELDS: Final = ("lora_name", "expected_generation", "lora_int_id", "model")
# As a path has at most: what a worker asks its parent for must fit into a line.
MAX_TEXT_CHARS: Final = 4096

_T = TypeVar("_T")


class InvalidBody(ServiceError):
    """JSON, but not what the route takes."""

    status = 422
    kind = "invalid_request_error"
    code = "invalid_request_body"


class WrongContentType(ServiceError):
    """The body does not say that it is JSON."""

    status = 415
    kind = "invalid_request_error"
    code = "invalid_content_type"


class LoadRequest(msgspec.Struct, frozen=True):
    """`POST /v1/load_lora_adapter`."""

    name: str
    path: str
    replace: bool
    expected: str | None
    model: str | None


class UnloadRequest(msgspec.Struct, frozen=True):
    """`POST /v1/unload_lora_adapter`."""

    name: str
    expected: str | None
    model: str | None


def decode_load(body: bytes, content_type: bytes) -> LoadRequest:
    """Raises WrongContentType, InvalidRequest (`malformed_json`), InvalidBody."""
    return _decode(body, content_type, LOAD_FIELDS, _load)


def decode_unload(body: bytes, content_type: bytes) -> UnloadRequest:
    """Raises as `decode_load`."""
    return _decode(body, content_type, UNLOAD_FIELDS, _unload)


def _decode(
    body: bytes, content_type: bytes, known: tuple[str, ...], read: Callable[[Fields], _T]
) -> _T:
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise WrongContentType("the content type must be application/json")
    try:
        fields = decode_object(body)
        unknown = sorted(set(fields.values) - set(known))
        if unknown:
            fields.refuse(unknown[0][:80], f"is not known; fields are {', '.join(known)}")
        return read(fields)
    except InvalidRequest as error:
        if error.code == "invalid_json":
            raise InvalidRequest(error.message, code="malformed_json") from None
        raise InvalidBody(error.message, field=error.field) from None


def _load(fields: Fields) -> LoadRequest:
    replace, alias = fields.boolean("load_inplace"), fields.boolean("replace")
    if replace is not None and alias is not None and replace != alias:
        fields.refuse("replace", "differs from `load_inplace`; send only one of them")
    fields.boolean("is_3d_lora_weight")
    return LoadRequest(
        name=_text(fields, "lora_name"),
        path=_text(fields, "lora_path"),
        replace=bool(replace or alias),
        expected=_bounded(fields, "expected_generation"),
        model=fields.string("model"),
    )


def _unload(fields: Fields) -> UnloadRequest:
    return UnloadRequest(
        name=_text(fields, "lora_name"),
        expected=_bounded(fields, "expected_generation"),
        model=fields.string("model"),
    )


def _text(fields: Fields, key: str) -> str:
    """A string that must be there; the registry says what it may be."""
    value = _bounded(fields, key)
    if value is None:
        fields.refuse_missing(key, "a string")
    return value


def _bounded(fields: Fields, key: str) -> str | None:
    value = fields.string(key)
    if value is not None and len(value) > MAX_TEXT_CHARS:
        fields.refuse(key, f"may have at most {MAX_TEXT_CHARS} characters")
    return value
