"""Identifiers as the wire shows them: a prefix and 32 hexadecimal digits of a random UUID."""

from __future__ import annotations

import uuid


def new_id(prefix: str) -> str:
    """`new_id("chatcmpl-")` -> `chatcmpl-<32 hex>`; prefixes as in spec/decisions.md."""
    return prefix + uuid.uuid4().hex
