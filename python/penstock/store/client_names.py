"""Names that clients give: made safe, or refused."""

from __future__ import annotations

import unicodedata
from typing import Final

from penstock.base.errors import InvalidRequest

MAX_NAME_BYTES: Final = 200
NO_NAME: Final = "file"
MAX_SESSION_ID_CHARS: Final = 256


def safe_name(name: str) -> str:
    """A file's name that may be put into a folder: the last part of a path, without what cannot
    be seen, at most 200 bytes of UTF-8 with its suffix kept. `../a/b.txt` -> `b.txt`."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    seen = "".join(c for c in last if unicodedata.category(c)[0] != "C").strip()
    if not seen.strip("."):
        return NO_NAME
    stem, dot, suffix = seen.rpartition(".")
    if not stem or len(suffix.encode()) > MAX_NAME_BYTES // 4:
        stem, dot, suffix = seen, "", ""
    room = MAX_NAME_BYTES - len((dot + suffix).encode())
    return stem.encode()[:room].decode("utf-8", "ignore") + dot + suffix


def check_session_id(id: str) -> str:
    """The id of a session, as given. Raises InvalidRequest for what cannot be one."""
    if not 0 < len(id) <= MAX_SESSION_ID_CHARS or not id.isprintable():
        raise InvalidRequest(
            f"`session_id` must be 1 to {MAX_SESSION_ID_CHARS} printable characters",
            field="session_id",
        )
    return id
