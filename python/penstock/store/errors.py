"""Errors of the store that become HTTP responses."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import NotFound, ServiceError, Unavailable

RETRY_AFTER_S: Final = 5
MAX_SHOWN_CHARS: Final = 80


class StorageFull(ServiceError):
    """507: the disk or a quota is full. The data to write was not stored; existing data is
    unchanged."""

    status = 507
    code = "storage_full"

    def __init__(self) -> None:
        super().__init__("the server's storage is full; delete files or responses, or retry later")


class StorageUnavailable(Unavailable):
    """503: the database is locked or cannot be reached."""

    code = "storage_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "the server's storage does not respond; retry later", retry_after_s=RETRY_AFTER_S
        )


class FileElided(ServiceError):
    """410: the file exists, but its content was not kept."""

    status = 410
    kind = "invalid_request_error"
    code = "file_elided"


class FileFailed(ServiceError):
    """422: the file is a placeholder for an error and has no content."""

    status = 422
    kind = "invalid_request_error"
    code = "file_error"


def file_not_found(id: str) -> NotFound:
    """Return the error for a file that is unknown, deleted or expired."""
    return NotFound(f"File '{shorten(id)}' not found or expired", code="file_not_found")


def shorten(id: str) -> str:
    """Return an id for an error message, truncated if it is long."""
    return id if len(id) <= MAX_SHOWN_CHARS else id[:MAX_SHOWN_CHARS] + "..."
