"""Ids in the APIs: a prefix followed by the 32 hexadecimal digits of a random UUID."""

from __future__ import annotations

import os
from typing import Final

# The bits of a UUID that encode its version and variant, and their values in a version 4 UUID.
UUID_FIXED: Final = 0xF000_C000_0000_0000_0000
UUID_4: Final = 0x4000_8000_0000_0000_0000


def new_id(prefix: str) -> str:
    """Return a new id: `new_id("chatcmpl-")` -> `chatcmpl-<32 hexadecimal digits>`."""
    number = int.from_bytes(os.urandom(16), "big")
    return f"{prefix}{number & ~UUID_FIXED | UUID_4:032x}"
