"""Who is told how far a download is; apart from `download`, which loads an HTTP client."""

from __future__ import annotations

from collections.abc import Callable

DownloadProgress = Callable[[str, int, "int | None"], None]
"""Gets the file's name, the bytes done, and the bytes in all where they are known."""


def no_progress(name: str, done_bytes: int, total_bytes: int | None) -> None:
    """Says nothing."""
