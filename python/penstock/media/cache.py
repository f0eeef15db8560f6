"""A cache of prepared media: the same bytes are decoded once, also by requests at the same time."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol

from penstock.base.errors import InvalidRequest
from penstock.models.media.prepared import DigestedMedia, MediaKind, PreparedMedia

DEFAULT_MAX_BYTES: Final = 256 * 1024**2
_HASHED_AT_ONCE_BYTES: Final = 256 * 1024
"""Larger items are hashed in a thread, so that the event loop goes on."""


class Prepares(Protocol):
    """The method of `MediaDecoders` that the cache calls."""

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> PreparedMedia: ...


@dataclass(slots=True)
class _Running:
    """An item that is being decoded, and the number of requests that wait for it."""

    task: asyncio.Task[DigestedMedia]
    num_waiting: int = 0


def _consume(task: asyncio.Task[DigestedMedia]) -> None:
    """Mark the error of a task as seen: all requests that waited for it may be cancelled."""
    if not task.cancelled():
        task.exception()


class MediaCache:
    """Prepares media with `decoders`, and keeps the most recently used results.

    - `fingerprint`: identifies the processor: results of other processors differ.
    - `max_bytes`: total size of the results; a larger one is not kept.
    """

    def __init__(
        self, decoders: Prepares, fingerprint: str, max_bytes: int = DEFAULT_MAX_BYTES
    ) -> None:
        self._decoders = decoders
        self._key = blake2b(fingerprint.encode(), digest_size=32).digest()
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, DigestedMedia] = OrderedDict()
        self._running: dict[bytes, _Running] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Total size of the results that are kept."""
        return self._num_bytes

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> DigestedMedia:
        """Return an item, decoded and prepared, with its digest. Raises as `MediaDecoders.prepare`
        does; errors are not kept. A cancelled request does not stop the decoding that another
        request waits for."""
        if len(data) <= _HASHED_AT_ONCE_BYTES:
            key = self._hash(kind, data)
        else:
            key = await asyncio.to_thread(self._hash, kind, data)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _Running(asyncio.create_task(self._run(key, kind, data)))
            running.task.add_done_callback(_consume)
        running.num_waiting += 1
        try:
            return await asyncio.shield(running.task)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, field=where, code=error.code) from None
        finally:
            running.num_waiting -= 1
            if running.num_waiting == 0:
                if self._running.get(key) is running:
                    del self._running[key]
                running.task.cancel()

    def _hash(self, kind: MediaKind, data: bytes) -> bytes:
        hashed = blake2b(data, digest_size=32, key=self._key, person=kind.encode())
        return hashed.digest()

    async def _run(self, key: bytes, kind: MediaKind, data: bytes) -> DigestedMedia:
        prepared = await self._decoders.prepare(kind, data, "")
        item = await asyncio.to_thread(DigestedMedia.of, prepared)
        self._keep(key, item)
        return item

    def _keep(self, key: bytes, item: DigestedMedia) -> None:
        num_bytes = len(item.media.data)
        if num_bytes > self._max_bytes:
            return
        self._kept[key] = item
        self._num_bytes += num_bytes
        while self._num_bytes > self._max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._num_bytes -= len(dropped.media.data)
