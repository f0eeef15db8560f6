"""Runs `page_process` children, so that a hostile page can neither stop nor slow down the
server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Final

import msgspec

from penstock.agent.web.page_process import LENGTH, PageJob, PageText, encode_frame
from penstock.base.time_limit import within

log = logging.getLogger(__name__)

MODULE: Final = "penstock.agent.web.page_process"
MAX_WORKERS: Final = 2
"""Maximum number of child processes: two, so that one hostile page does not block all others."""
PAGE_TIMEOUT_S: Final = 5.0
"""Time limit for the text of one page."""
START_TIMEOUT_S: Final = 30.0
"""Time limit for the start of a child process, which imports the library."""


class PageFailed(Exception):
    """A page cannot be read. `message`: for the model."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Ended(Exception):
    """A child process has ended without an answer."""


class PageWorkers:
    """Reads pages in up to MAX_WORKERS child processes, which start at the first page, are reused,
    and end after a minute without pages. Belongs to one event loop.

    `page_timeout_s`: time limit for the text of one page.
    """

    def __init__(self, page_timeout_s: float = PAGE_TIMEOUT_S) -> None:
        self._page_timeout_s = page_timeout_s
        self._slots = asyncio.Semaphore(MAX_WORKERS)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._ending: set[_Worker] = set()
        self._closed = False

    async def text_of(self, job: PageJob) -> PageText:
        """Return the text of a page, or the error for which it has none. Raises PageFailed if the
        page exceeds a limit of time or memory, or after `close`. If the task is cancelled, the
        child process ends."""
        async with self._slots:
            while self._idle:  # an idle child may end at the moment in which it gets a page
                with contextlib.suppress(_Ended):
                    return await self._ask(self._idle.pop(), job)
            try:
                return await self._ask(await _Worker.start(), job)
            except _Ended:
                raise PageFailed("the page is too complex") from None

    def close(self) -> None:
        """Kill the child processes, also those that are reading a page. May be called again."""
        self._closed = True
        self._ending.update(self._idle, self._busy)
        self._idle.clear()
        for worker in self._ending:
            worker.kill()

    async def wait_closed(self) -> None:
        """Wait until the child processes have ended, after `close`."""
        while self._ending:
            await self._ending.pop().end()

    async def _ask(self, worker: _Worker, job: PageJob) -> PageText:
        self._busy.add(worker)
        try:
            if self._closed:
                raise PageFailed("the server is shutting down")
            await within(START_TIMEOUT_S, worker.start_up())
            answer = await within(self._page_timeout_s, worker.ask(job))
        except asyncio.TimeoutError:
            await worker.end()
            raise PageFailed("it takes too long to read the page") from None
        except BaseException:
            await worker.end()
            raise
        finally:
            self._busy.discard(worker)
        if self._closed:
            await worker.end()
        else:
            self._idle.append(worker)
        return answer


class _Worker:
    """One child process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ready = False
        self._killed = False

    @classmethod
    async def start(cls) -> _Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C must reach the parent only
        )
        return cls(process)

    async def start_up(self) -> None:
        """Wait until the process has loaded the library. Raises PageFailed."""
        if self._ready:
            return
        try:
            await self._receive()
        except _Ended:
            code = await self._process.wait()
            log.error("%s cannot start: its exit code is %d", MODULE, code)
            raise PageFailed("this server cannot read pages") from None
        self._ready = True

    async def ask(self, job: PageJob) -> PageText:
        """Return the answer of the process. Raises _Ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode_frame(job))
            await self._process.stdin.drain()
        except ConnectionError:
            raise _Ended from None
        return await self._receive()

    async def _receive(self) -> PageText:
        source = self._process.stdout
        assert source is not None
        try:
            (size,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
            return msgspec.msgpack.decode(await source.readexactly(size), type=PageText)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise _Ended from None

    def kill(self) -> None:
        # A second signal would poll the process, and the event loop could then miss its exit code.
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        """Kill the process and wait for its end."""
        self.kill()
        await self._process.wait()
