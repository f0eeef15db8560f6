"""Errors of the store."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import NotFound, ServiceError, Unavailable

RETRY_AFTER_S: Final = 5
MAX_SHOWN_CHARS: Final = 80


class StorageFull(ServiceError):
    """507: nothing was stored, and nothing stored before is lost."""

    status = 507
    code = "storage_full"

    def __init__(self) -> None:
        super().__init__("the server's storage is full; delete files or responses, or retry later")


class StorageUnavailable(Unavailable):
    """503: the database is locked, or cannot be reached."""

    code = "storage_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "the server's storage does not respond; retry later", retry_after_s=RETRY_AFTER_S
        )


class FileElided(ServiceError):
    """410: the file is known, but its body was not kept."""

    status = 410
    kind = "invalid_request_error"
    code = "file_elided"


class FileFailed(ServiceError):
    """422: the file is a placeholder for an error."""

    status = 422
    kind = "invalid_request_error"
    code = "file_error"


def file_not_found(id: str) -> NotFound:
    """Return the error for a file that is unknown, deleted or expired."""
    return NotFound(f"File '{shorten(id)}' not found or expired", code="file_not_found")


def shorten(id: str) -> str:
    """Return an id for an error message, shortened if it is long."""
    return id if len(id) <= MAX_SHOWN_CHARS else id[:MAX_SHOWN_CHARS] + "..."
