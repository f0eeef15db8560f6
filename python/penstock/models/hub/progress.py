"""The progress callback of a download. It has its own module so that importing it does not import
the HTTP client."""

from __future__ import annotations

from collections.abc import Callable

DownloadProgress = Callable[[str, int, "int | None"], None]
"""Called with the file's name, the bytes downloaded, and the total bytes or None."""


def no_progress(name: str, done_bytes: int, total_bytes: int | None) -> None:
    """Ignore the progress of a download."""
