"""Several API processes at one address over the same engines, and their keeper."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from penstock.api.observability.metrics_files import trim_metrics_files
from penstock.api.serving.model_control import (
    LoadAdapterCommand,
    ModelCommand,
    ModelStates,
    Stop,
    SyncCommand,
    ToWorker,
    UnloadAdapterCommand,
    WorkerFailed,
    WorkerReady,
    execute_command,
    from_worker_decoder,
    line_of,
)
from penstock.api.serving.tasks import ApiTask, WorkerTask
from penstock.api.serving.uvicorn_server import log_draining
from penstock.base.errors import ModelError
from penstock.config import child_environment
from penstock.engine.processes.fleet import EngineFleet, States
from penstock.models.loader.sampling_defaults import SamplingDefaults

log = logging.getLogger(__name__)

RESTART_PAUSE_S = 1.0
STOP_TIMEOUT_S = 10.0
"""What a worker may take to end beyond the time that its open answers have."""
STATUS_LINE_BYTES = 1024 * 1024


class WorkerGroup:
    """Starts the workers, restarts those that die, and passes signals on.

    They run in sessions of their own, so that Ctrl-C reaches them through this process only.
    `sampling`: as of `WorkerReady`, once they serve.
    """

    def __init__(self, task: ApiTask, fleet: EngineFleet, listener: int) -> None:
        self._metrics_dir = tempfile.mkdtemp(prefix="penstock-metrics-")
        api = msgspec.structs.replace(task, metrics_dir=self._metrics_dir)
        self._task = WorkerTask(api, listener)
        self._fleet = fleet
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._ready: list[asyncio.Future[None]] = []
        self.sampling: dict[str, SamplingDefaults] = {}
        self._commands: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._killing: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Spawn all workers. Returns at once."""
        loop = asyncio.get_running_loop()
        self._fleet.watch(self._send_states)
        for index in range(self._task.api.server.workers):
            self._ready.append(loop.create_future())
            self._keepers.append(asyncio.create_task(self._keep(index)))

    async def wait_ready(self) -> None:
        """Return when all of them serve. Raises ModelError if one cannot."""
        await asyncio.gather(*self._ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def wait_stopped(self) -> None:
        """Return when all workers have ended after a signal."""
        await asyncio.gather(*self._keepers)

    def stop(self) -> None:
        """Let them drain; called again: stop at once. One that does not is killed."""
        drain_timeout_s = 0.0 if self._stopping else self._task.api.server.drain_timeout_s
        if not self._stopping:
            log_draining(drain_timeout_s)
        self._stopping = True
        for process in self._processes.values():
            _send(process, Stop())
        if self._killing is not None:
            self._killing.cancel()
        loop = asyncio.get_running_loop()
        self._killing = loop.call_later(drain_timeout_s + STOP_TIMEOUT_S, self._kill)

    async def close(self) -> None:
        """End what still runs."""
        if self._killing is not None:
            self._killing.cancel()
        tasks = [*self._keepers, *self._commands]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ready in self._ready:
            ready.cancel()
        self._kill()
        for process in self._processes.values():
            await process.wait()
        shutil.rmtree(self._metrics_dir, ignore_errors=True)

    def _kill(self) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _keep(self, index: int) -> None:
        while not self._stopping:
            end = await self._run(index, self._ready[index])
            if not self._stopping:
                log.error("API worker %d %s; restarting it", index, end)
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _run(self, index: int, ready: asyncio.Future[None]) -> str:
        """The life of one worker, and how it ended; only the first one settles `ready`."""
        try:
            process = await self._spawn(index)
        except OSError as error:  # such as no free descriptor
            failure = f"cannot be started: {error}"
            if not ready.done():
                ready.set_exception(ModelError(f"an API worker {failure}"))
            return failure
        failure = await self._follow(process, ready)
        if not ready.done():
            ready.set_exception(ModelError(failure))
        code = await process.wait()
        self._forget(process.pid)
        return f"ended with status {code}"

    async def _spawn(self, index: int) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock.api.serving.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=STATUS_LINE_BYTES,
            pass_fds=(self._task.listener,),
            start_new_session=True,
            env=child_environment(PROMETHEUS_MULTIPROC_DIR=self._metrics_dir),
        )
        self._processes[index] = process
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has just died; `_follow` hears of it
            process.stdin.write(line_of(self._task) + line_of(ModelStates(self._fleet.states)))
            await process.stdin.drain()
        if self._stopping:  # `stop` came while it was spawned
            _send(process, Stop())
        return process

    async def _follow(
        self, process: asyncio.subprocess.Process, ready: asyncio.Future[None]
    ) -> str:
        """Do what a worker says until it ends. Returns why it could not start, if it could not."""
        assert process.stdout is not None
        failure = "an API worker ended while it started"
        try:
            async for line in process.stdout:
                match from_worker_decoder.decode(line):
                    case WorkerReady(sampling):
                        self.sampling = sampling
                        if not ready.done():
                            ready.set_result(None)
                    case WorkerFailed(text):
                        failure = text
                    case (
                        ModelCommand()
                        | LoadAdapterCommand()
                        | UnloadAdapterCommand()
                        | SyncCommand() as ask
                    ):
                        running = asyncio.create_task(self._execute_command(process, ask))
                        self._commands.add(running)
                        running.add_done_callback(self._commands.discard)
        except ValueError:  # a line that was cut off
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return failure

    async def _execute_command(
        self,
        process: asyncio.subprocess.Process,
        ask: ModelCommand | LoadAdapterCommand | UnloadAdapterCommand | SyncCommand,
    ) -> None:
        _send(process, await execute_command(self._fleet, ask))

    def _send_states(self, states: States) -> None:
        told = ModelStates(dict(states))
        for process in self._processes.values():
            _send(process, told)

    def _forget(self, pid: int) -> None:
        """A dead worker's counters stay, its gauges go."""
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        trim_metrics_files(Path(self._metrics_dir), pid)


def _send(process: asyncio.subprocess.Process, message: ToWorker) -> None:
    """Also that it is to stop, which is no signal: whoever sends those may have sent them to the
    worker as well, and a second one would cut its answers off. One that has died misses nothing."""
    assert process.stdin is not None
    if not process.stdin.is_closing():  # uvloop raises on a pipe that is
        process.stdin.write(line_of(message))
