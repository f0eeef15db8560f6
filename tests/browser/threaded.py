"""Servers that run in a thread of their own, because Playwright occupies the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field

START_S = 120


@dataclass(frozen=True)
class Served:
    """A server that runs in a thread.

    `before_stop`: called before it stops, to close the pages that still read from it.
    """

    url: str
    before_stop: list[Callable[[], None]] = field(default_factory=list)


@contextmanager
def served(make: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[Served]:
    """Run a server until the block ends. `make` returns the context manager that runs it and that
    yields its address."""
    ready: Future[str] = Future()
    done = threading.Event()

    async def run() -> None:
        async with make() as url:
            ready.set_result(url)
            await asyncio.to_thread(done.wait)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=main)
    thread.start()
    before_stop: list[Callable[[], None]] = []
    try:
        yield Served(ready.result(START_S), before_stop)
    finally:
        for close in before_stop:
            close()
        done.set()
        thread.join()
