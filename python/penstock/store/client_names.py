"""Sanitizes file names and validates session ids that clients choose."""

from __future__ import annotations

import unicodedata
from typing import Final

from penstock.base.errors import InvalidRequest

MAX_NAME_BYTES: Final = 200
NO_NAME: Final = "file"
MAX_SESSION_ID_CHARS: Final = 256


def safe_name(name: str) -> str:
    """Return a safe file name for `name`: its last path segment, without control characters,
    truncated to 200 bytes of UTF-8 including the suffix. Example: `../a/b.txt` -> `b.txt`."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    visible = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    if not visible.strip("."):
        return NO_NAME
    stem, dot, suffix = visible.rpartition(".")
    if not stem or len(suffix.encode()) > MAX_NAME_BYTES // 4:
        stem, dot, suffix = visible, "", ""
    stem_bytes = MAX_NAME_BYTES - len((dot + suffix).encode())
    return stem.encode()[:stem_bytes].decode("utf-8", "ignore") + dot + suffix


def check_session_id(id: str) -> str:
    """Return `id` unchanged if it is a valid session id. Raises InvalidRequest otherwise."""
    if not 0 < len(id) <= MAX_SESSION_ID_CHARS or not id.isprintable():
        raise InvalidRequest(
            f"`session_id` must be 1 to {MAX_SESSION_ID_CHARS} printable characters",
            field="session_id",
        )
    return id
