"""The progress callback of a download. It is apart from `download` so that importing it does not
import the HTTP client."""

from __future__ import annotations

from collections.abc import Callable

DownloadProgress = Callable[[str, int, "int | None"], None]
"""Called with the file's name, the bytes done, and the total bytes if known."""


def no_progress(name: str, done_bytes: int, total_bytes: int | None) -> None:
    """Ignore the progress."""
