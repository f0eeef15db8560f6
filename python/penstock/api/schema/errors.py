"""Error answers of the OpenAI-style routes."""

from __future__ import annotations

from msgspec import Struct


class ErrorBody(Struct):
    """An error. `param`: the wrong field of the request. `message`: the problem and, for a wrong
    field, the values that are accepted."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct):
    """The body of every error answer of an OpenAI-style route."""

    error: ErrorBody
