"""The refusal of a request to a model of another kind."""

from __future__ import annotations

from penstock.base.errors import InvalidRequest


def unsupported(message: str) -> InvalidRequest:
    """Return the error for a request that the model cannot answer. `message`: one of the messages
    of `engine.types`, such as NO_TEXT."""
    return InvalidRequest(message, field="model", code="unsupported_model")
