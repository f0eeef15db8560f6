"""Downloads of models that the web page starts. A download runs in a thread and survives its
request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from penstock.base.errors import Conflict, ModelError, NotFound
from penstock.base.ids import new_id

log = logging.getLogger(__name__)

DownloadState = Literal["running", "done", "failed", "cancelled"]
KEPT: Final = 20
"""The number of downloads that have ended and are still listed."""

Progress = Callable[[str, int, "int | None"], None]
Fetch = Callable[[str, Progress], object]


class FileProgress(Struct):
    """The progress of one file, in bytes. `total`: None if unknown."""

    name: str
    done: int
    total: int | None


class Download(Struct, kw_only=True):
    """A download of a model. `error`: why it failed."""

    id: str
    model: str
    state: DownloadState = "running"
    files: list[FileProgress] = []
    error: str | None = None


class _Cancelled(BaseException):
    """Ends a download in its thread. Not an Exception, so that no retry swallows it."""


class Downloads:
    """The downloads of this process, one at a time for each model.

    `fetch(model, progress)` downloads a model, and raises ModelError.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._all: dict[str, Download] = {}
        self._cancelled: dict[str, threading.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def all(self) -> list[Download]:
        """The downloads, the last started first."""
        return list(self._all.values())[::-1]

    def start(self, model: str) -> Download:
        """Start a download. Raises Conflict if this model is being downloaded."""
        if any(d.model == model and d.state == "running" for d in self._all.values()):
            raise Conflict(f"'{model}' is being downloaded", code="download_running")
        download = Download(id=new_id("pull_"), model=model)
        self._all[download.id] = download
        self._cancelled[download.id] = threading.Event()
        task = asyncio.create_task(self._run(download))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return download

    def cancel(self, id: str) -> Download:
        """Cancel a download; what was downloaded stays and is continued by the next. A download
        that has ended leaves the list. Raises NotFound."""
        download = self._all.get(id)
        if download is None:
            raise NotFound("there is no such download", code="download_not_found")
        if download.state == "running":
            self._cancelled[id].set()
        else:
            self._forget(id)
        return download

    async def close(self) -> None:
        """Cancel all downloads and wait until their threads have ended."""
        for cancelled in self._cancelled.values():
            cancelled.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, download: Download) -> None:
        cancelled = self._cancelled[download.id]
        files: dict[str, FileProgress] = {}

        def update(name: str, done_bytes: int, total_bytes: int | None) -> None:
            if cancelled.is_set():
                raise _Cancelled
            files[name] = FileProgress(name, done_bytes, total_bytes)
            download.files = list(files.values())

        try:
            await asyncio.to_thread(self._fetch_or_stop, download, update)
        except ModelError as error:
            download.state, download.error = "failed", str(error)
        except OSError as error:
            download.state, download.error = "failed", error.strerror or "the disk failed"
        except Exception:
            log.exception("the download of %s failed", download.model)
            download.state, download.error = "failed", "internal error"
        self._drop_old()

    def _fetch_or_stop(self, download: Download, update: Progress) -> None:
        try:
            self._fetch(download.model, update)
        except _Cancelled:
            download.state = "cancelled"
        else:
            download.state = "done"

    def _drop_old(self) -> None:
        ended = [id for id, download in self._all.items() if download.state != "running"]
        for id in ended[:-KEPT]:
            self._forget(id)

    def _forget(self, id: str) -> None:
        self._all.pop(id, None)
        self._cancelled.pop(id, None)
