"""Keeps one engine process alive: starts it, reports its start, restarts it with back-off."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from typing import Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.25
LAST_BACKOFF_S = 30.0
HEALTHY_AFTER_S = 60.0
STOP_TIMEOUT_S = 10.0
STATUS_LINE_BYTES = 1024 * 1024


class StatusLine(msgspec.Struct, frozen=True):
    """One line of JSON that the engine process writes on its standard output."""

    event: Literal["report", "ready", "failed"]
    text: str = ""


class EngineSupervisor:
    """Owns the engine process and the directory of its socket.

    The child ends when its standard input closes, so it never outlives this process.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._folder = tempfile.mkdtemp(prefix="penstock-")  # mode 0700
        self.socket_path = os.path.join(self._folder, "engine.sock")
        self.restarts = 0
        self.report = ""
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Spawn the engine. Returns at once; see `wait_ready`."""
        self._process = await self._spawn()

    async def wait_ready(self) -> str:
        """The start-up report (the memory formula). Raises ModelError if it cannot start."""
        assert self._process is not None
        failure = await self._follow(self._process)
        if failure is not None:
            raise ModelError(failure)
        self._watcher = asyncio.create_task(self._watch(), name="engine-supervisor")
        return self.report

    async def stop(self) -> None:
        """End the engine and remove its socket."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _spawn(self) -> asyncio.subprocess.Process:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.socket_path)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "penstock.engine.process",
            self.socket_path,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=STATUS_LINE_BYTES,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._settings) + b"\n")
        await process.stdin.drain()
        return process

    async def _follow(self, process: asyncio.subprocess.Process) -> str | None:
        """Read status lines until the engine is ready (None) or has failed (why)."""
        assert process.stdout is not None
        async for line in process.stdout:
            status = msgspec.json.decode(line, type=StatusLine)
            match status.event:
                case "report":
                    self.report = status.text
                case "ready":
                    return None
                case "failed":
                    await process.wait()
                    return status.text
        code = await process.wait()
        return f"the engine process ended with status {code} while it started"

    async def _watch(self) -> None:
        backoff_s = FIRST_BACKOFF_S
        loop = asyncio.get_running_loop()
        while True:
            assert self._process is not None
            began = loop.time()
            code = await self._process.wait()
            if loop.time() - began > HEALTHY_AFTER_S:
                backoff_s = FIRST_BACKOFF_S
            log.error("the engine process ended with status %s; restart in %.2f s", code, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, LAST_BACKOFF_S)
            self.restarts += 1
            self._process = await self._spawn()
            failure = await self._follow(self._process)
            if failure is not None:
                log.error("the engine did not restart: %s", failure)
