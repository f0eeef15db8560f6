"""Detects clients of Anthropic's API, and formats the response fields that differ from OpenAI's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from starlette.types import Scope

ACTIVE: Final = "active"  # value of `lifecycle` for every model and skill
# Headers that only clients of Anthropic's API send.
HEADERS: Final = (b"anthropic-version", b"anthropic-beta", b"compat-version", b"compat-beta")


def is_anthropic_client(scope: Scope) -> bool:
    """Tell whether a request comes from a client of Anthropic's API."""
    return any(name in HEADERS for name, _ in scope["headers"])


def rfc3339(seconds: int) -> str:
    """Format Unix seconds as an RFC 3339 time in UTC, as Anthropic's API does."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
