"""Several API processes over one listening socket and one engine, and their keeper."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile

import msgspec

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, ServerSettings, child_environment
from penstock.engine.types import EngineInfo

log = logging.getLogger(__name__)

RESTART_PAUSE_S = 1.0
STATUS_LINE_BYTES = 1024 * 1024


class WorkerTask(msgspec.Struct, frozen=True):
    """What a worker is told, as one line of JSON on its standard input. It ends when that input
    does."""

    engine_settings: EngineSettings
    server_settings: ServerSettings
    socket_path: str
    listener: int
    metrics_dir: str | None = None


class WorkerStatus(msgspec.Struct, frozen=True):
    """What a worker says, as one line of JSON on its standard output: that it serves, or why it
    cannot."""

    info: EngineInfo | None = None
    failure: str | None = None


class WorkerGroup:
    """Starts the workers, restarts those that die, and passes signals on.

    They run in sessions of their own, so that Ctrl-C reaches them through this process only.
    """

    def __init__(self, task: WorkerTask) -> None:
        self._metrics_dir = tempfile.mkdtemp(prefix="penstock-metrics-")
        self._task = msgspec.structs.replace(task, metrics_dir=self._metrics_dir)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._ready: list[asyncio.Future[EngineInfo]] = []
        self._stopping = False

    async def start(self) -> None:
        """Spawn all workers. Returns at once."""
        loop = asyncio.get_running_loop()
        for index in range(self._task.server_settings.workers):
            self._ready.append(loop.create_future())
            self._keepers.append(asyncio.create_task(self._keep(index)))

    async def wait_ready(self) -> EngineInfo:
        """Return when all of them serve. Raises ModelError if one cannot."""
        infos = await asyncio.gather(*self._ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        return infos[0]

    async def wait_stopped(self) -> None:
        """Return when all workers have ended after a signal."""
        await asyncio.gather(*self._keepers)

    def stop(self) -> None:
        """Let them drain; called again: stop at once."""
        self._stopping = True
        for process in self._processes.values():
            _terminate(process)

    async def close(self) -> None:
        """End what still runs."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for ready in self._ready:
            ready.cancel()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(self._metrics_dir, ignore_errors=True)

    async def _keep(self, index: int) -> None:
        while not self._stopping:
            process = await self._spawn(index)
            await self._follow(process, self._ready[index])
            code = await process.wait()
            self._forget(process.pid)
            if not self._stopping:
                log.error("API worker %d ended with status %d; restarting it", index, code)
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _spawn(self, index: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.api.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=STATUS_LINE_BYTES,
            pass_fds=(self._task.listener,),
            start_new_session=True,
            env=child_environment(PROMETHEUS_MULTIPROC_DIR=self._metrics_dir),
        )
        self._processes[index] = process
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(self._task) + b"\n")
        await process.stdin.drain()
        if self._stopping:  # `stop` came while it was spawned
            _terminate(process)
        return process

    async def _follow(
        self, process: asyncio.subprocess.Process, ready: asyncio.Future[EngineInfo]
    ) -> None:
        """Read what a worker says; only its first life settles `ready`."""
        assert process.stdout is not None
        line = await process.stdout.readline()
        status = WorkerStatus(failure="an API worker ended while it started")
        if line:
            status = msgspec.json.decode(line, type=WorkerStatus)
        if ready.done():
            return
        if status.info is not None:
            ready.set_result(status.info)
        else:
            ready.set_exception(ModelError(status.failure or "an API worker did not start"))

    def _forget(self, pid: int) -> None:
        """A dead worker's counters stay, its gauges go."""
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid, self._metrics_dir)  # type: ignore[no-untyped-call]


def _terminate(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
