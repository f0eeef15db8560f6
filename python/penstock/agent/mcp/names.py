"""Function names of MCP tools. Models and dialects accept `^[A-Za-z0-9_-]{1,64}$`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from typing import Final

MAX_NAME_CHARS: Final = 64
MAX_PREFIX_CHARS: Final = 32

_HASH_CHARS: Final = 8


def sanitised(text: str, limit: int = MAX_NAME_CHARS) -> str:
    """Return `text` with `_` for each run of characters that names cannot have, cut to `limit`
    characters. "" if nothing is left."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text)[:limit].strip("_")


def function_name(prefix: str, tool: str, taken: Collection[str]) -> str:
    """Return the function name `<prefix>_<tool>` of a server's tool.

    A name that is too long, or equal to one of `taken`, ends in a hash of the tool's own name
    instead.
    """
    name = f"{prefix}_{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if len(name) <= MAX_NAME_CHARS and name not in taken:
        return name
    kept = name[: MAX_NAME_CHARS - _HASH_CHARS - 1]
    salt = 0
    while True:
        digest = hashlib.sha256(f"{prefix}\0{tool}\0{salt}".encode()).hexdigest()
        name = f"{kept}_{digest[:_HASH_CHARS]}"
        if name not in taken:
            return name
        salt += 1
