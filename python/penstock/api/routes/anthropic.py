"""Answer shapes of Anthropic's API where they differ from OpenAI's."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from starlette.types import Scope

# Whoever sends one of these is a client of Anthropic's API.
ACTIVE: Final = "active"  # the lifecycle of what is served here
HEADERS: Final = (b"anthropic-version", b"anthropic-beta", b"compat-version", b"compat-beta")


def is_anthropic_client(scope: Scope) -> bool:
    """Whether a request comes from such a client."""
    return any(name in HEADERS for name, _ in scope["headers"])


def rfc3339(seconds: int) -> str:
    """Unix seconds as such clients read times."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
