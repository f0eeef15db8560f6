"""Error answers."""

from __future__ import annotations

from msgspec import Struct


class ErrorBody(Struct):
    """`param` names the field at fault. The message says what would be right."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct):
    """Every error of an OpenAI-style route."""

    error: ErrorBody
