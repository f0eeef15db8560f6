"""Keeps one engine process alive: starts it, reports when it serves, restarts it with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.engine.throttled_log import ThrottledLog
from penstock.engine.types import AdapterSource, EngineInfo

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.25
LAST_BACKOFF_S = 30.0
HEALTHY_AFTER_S = 60.0
STOP_TIMEOUT_S = 10.0
STATUS_LINE_BYTES = 1024 * 1024


class EngineTask(msgspec.Struct, frozen=True):
    """The line of JSON that the engine process reads from standard input.

    `limit_bytes`: most memory to plan with, None for all that is available.
    `adapters`: the adapters to load at the start.
    """

    settings: EngineSettings
    limit_bytes: int | None = None
    adapters: tuple[AdapterSource, ...] = ()


class StatusLine(msgspec.Struct, frozen=True):
    """One line of JSON that the engine process writes to standard output. `info`: set if `event` is
    "ready", else None."""

    event: Literal["report", "ready", "failed"]
    text: str = ""
    info: EngineInfo | None = None


class EngineSupervisor:
    """Owns the engine process and the directory of its socket.

    The engine process ends when its standard input closes, so it never outlives this process.

    `adapters`: returns the adapters that an engine loads when it starts.
    `restarted`: called when an engine serves again after a crash.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        adapters: Callable[[], tuple[AdapterSource, ...]] = tuple,
        restarted: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = EngineTask(settings)
        self._adapters = adapters
        self._restarted = restarted
        self._folder = tempfile.mkdtemp(prefix="penstock-")  # mode 0700
        self.socket_path = os.path.join(self._folder, "engine.sock")
        self.restarts = 0
        self.report = ""
        self.info: EngineInfo | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, limit_bytes: int | None = None) -> None:
        """Spawn the engine process without waiting until it serves (see `wait_ready`).
        `limit_bytes`: most memory to plan with, None for all that is available. May be called again
        after `drain` or a failed start. Raises ModelError if the process cannot be started."""
        self._task = msgspec.structs.replace(self._task, limit_bytes=limit_bytes)
        try:
            await self._spawn()
        except OSError as error:
            raise ModelError(f"the engine process cannot be started: {error}") from error

    async def wait_ready(self) -> str:
        """Wait until the engine serves. Return the start-up report, which is the memory formula.
        Raises ModelError if the engine cannot start."""
        assert self._process is not None
        failure = await self._follow(self._process)
        if failure is not None:
            raise ModelError(failure)
        self._watcher = asyncio.create_task(self._watch(), name="engine-supervisor")
        return self.report

    async def drain(self) -> None:
        """Return when all callers have disconnected from the engine and the engine has ended. It is
        not restarted. `stop` ends the wait."""
        await self._stop_watching()
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            with contextlib.suppress(ConnectionError):  # it has just died
                process.stdin.write(b"drain\n")
                await process.stdin.drain()
            await process.wait()
        self._process = None

    async def stop(self) -> None:
        """End the engine at once and remove its socket."""
        await self._stop_watching()
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except asyncio.TimeoutError:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    self._process.kill()
                await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            (ended,) = await asyncio.gather(self._watcher, return_exceptions=True)
            if isinstance(ended, Exception):
                log.error("the engine was not watched any more", exc_info=ended)
            self._watcher = None

    async def _spawn(self) -> asyncio.subprocess.Process:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "penstock.engine.processes.process",
                self.socket_path,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=STATUS_LINE_BYTES,
                start_new_session=True,  # Ctrl-C goes to the parent only
            )
        )
        try:
            self._process = process = await asyncio.shield(starting)
        except asyncio.CancelledError:  # the process exists nevertheless; `stop` ends it
            with contextlib.suppress(OSError):
                self._process = await starting
            raise
        assert process.stdin is not None
        task = msgspec.structs.replace(self._task, adapters=self._adapters())
        with contextlib.suppress(ConnectionError):  # the process died; `_follow` finds out how
            process.stdin.write(msgspec.json.encode(task) + b"\n")
            await process.stdin.drain()
        return process

    async def _follow(self, process: asyncio.subprocess.Process) -> str | None:
        """Wait until the engine is ready. Return None, or the reason why it failed. An engine that
        writes anything but status lines is killed."""
        try:
            return await self._read_status(process)
        except ValueError as error:  # msgspec's errors are ValueErrors, too
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return f"the engine process wrote a line that is no status line: {error}"

    async def _read_status(self, process: asyncio.subprocess.Process) -> str | None:
        assert process.stdout is not None
        async for line in process.stdout:
            status = msgspec.json.decode(line, type=StatusLine)
            match status.event:
                case "report":
                    self.report = status.text
                case "ready":
                    self.info = status.info
                    return None
                case "failed":
                    await process.wait()
                    return status.text
        code = await process.wait()
        return f"the engine process ended with status {code} while it started"

    async def _watch(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        deaths, refusals = ThrottledLog(log), ThrottledLog(log)
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            began = loop.time()
            code = await self._process.wait()
            if loop.time() - began > HEALTHY_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
                deaths.clear()
                refusals.clear()
            ended = f"the engine process ended with status {code}; restart in {backoff_s:.2f} s"
            deaths.note(ended, loop.time())
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
            self.restarts += 1
            failure = await self._restart()
            if failure is not None:
                refusals.note(f"the engine did not restart: {failure}", loop.time())
            else:
                self._restarted()

    async def _restart(self) -> str | None:
        """Spawn a new engine and wait until it is ready. Return None, or the reason why it
        failed."""
        try:
            return await self._follow(await self._spawn())
        except OSError as error:  # such as no free descriptor
            return str(error)
