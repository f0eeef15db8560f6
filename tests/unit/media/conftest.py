"""Pools of decoding processes that tests share, in an event loop of a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from penstock.media.decoders import MediaDecoders
from penstock.media.limits import MediaLimits
from penstock.models.media.prepared import MediaKind, PreparedMedia
from tests.support.hostile_decoder import PROGRAM

T = TypeVar("T")


class Pool:
    """A `MediaDecoders` for tests that are not coroutines."""

    def __init__(self, limits: MediaLimits, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.decoders = self.run(self._open(limits, options))

    async def _open(self, limits: MediaLimits, options: dict[str, Any]) -> MediaDecoders:
        return MediaDecoders(None, limits, **options)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def prepare(self, kind: MediaKind, data: bytes, where: str = "input") -> PreparedMedia:
        return self.run(self.decoders.prepare(kind, data, where))

    def close(self) -> None:
        self.run(self.decoders.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A pool with one process."""
    made = Pool(MediaLimits(processes=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def hostile_pool() -> Iterator[Pool]:
    """A pool whose process does what `tests.support.hostile_decoder` says."""
    made = Pool(MediaLimits(processes=1), program=PROGRAM)
    yield made
    made.close()
