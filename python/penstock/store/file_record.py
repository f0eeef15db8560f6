"""The metadata of a new file."""

from __future__ import annotations

import mimetypes
from typing import Final

from penstock.store.client_names import safe_name
from penstock.store.records import NewFile, StoredFile

BINARY_TYPE: Final = "application/octet-stream"
BINARY_FORMAT: Final = "bin"


def file_record(new: NewFile, id: str, now: int, expiry_s: int) -> StoredFile:
    """Return the metadata of a new file, with a sanitized name. `now`: Unix seconds."""
    name = safe_name(new.name)
    return StoredFile(
        id=id,
        name=name,
        format=new.format or format_of(name),
        mime_type=new.mime_type or mimetypes.guess_type(name)[0] or BINARY_TYPE,
        size_bytes=new.size_bytes if new.data is None else len(new.data),
        created_at=now,
        expires_at=now + expiry_s,
        purpose=new.purpose,
        source=new.source,
        container_id=new.container_id,
        session=new.session,
        elided=new.data is None and new.code is None,
        code=new.code,
        message=new.message,
    )


def format_of(name: str) -> str:
    """Return the lower-case suffix of a file name as its format, or "bin" without a suffix:
    `notes.MD` -> `md`."""
    stem, dot, suffix = name.rpartition(".")
    return suffix.lower() if stem and dot and suffix.isalnum() else BINARY_FORMAT
