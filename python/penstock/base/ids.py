"""Identifiers as the wire shows them: a prefix and 32 hexadecimal digits of a random UUID."""

from __future__ import annotations

import os
from typing import Final

UUID_FIXED: Final = 0xF000_C000_0000_0000_0000
UUID_4: Final = 0x4000_8000_0000_0000_0000


def new_id(prefix: str) -> str:
    """`new_id("chatcmpl-")` -> `chatcmpl-<32 hex>`; prefixes as in spec/decisions.md."""
    number = int.from_bytes(os.urandom(16), "big")
    return f"{prefix}{number & ~UUID_FIXED | UUID_4:032x}"
