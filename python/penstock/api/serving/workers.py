"""Runs several API processes that share one address and the same engines."""

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
    Command,
    ModelStates,
    Stop,
    ToWorker,
    WorkerFailed,
    WorkerReady,
    encode_message,
    execute_command,
    from_worker_decoder,
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
"""Seconds that a worker may take to exit, in addition to the drain timeout."""
STATUS_LINE_BYTES = 1024 * 1024


class WorkerGroup:
    """Starts the API workers, restarts workers that die, executes their commands, and stops them.

    Each worker runs in its own session, so that Ctrl-C reaches only this process.

    `listener`: the file descriptor of the socket that reserves the address.
    `sampling`: model id -> sampling defaults, from the last WorkerReady.
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
        """Begin to spawn all workers, without waiting for them."""
        loop = asyncio.get_running_loop()
        self._fleet.watch(self._send_states)
        for index in range(self._task.api.server.workers):
            self._ready.append(loop.create_future())
            self._keepers.append(asyncio.create_task(self._keep_running(index)))

    async def wait_ready(self) -> None:
        """Return once all workers serve. Raises ModelError if a worker cannot."""
        await asyncio.gather(*self._ready)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)

    async def wait_stopped(self) -> None:
        """Return once all workers have exited after `stop`."""
        await asyncio.gather(*self._keepers)

    def stop(self) -> None:
        """Drain the workers. The second call stops them at once. Workers that do not exit in time
        are killed."""
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
        """Kill the workers that still run, and remove the metrics folder."""
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

    async def _keep_running(self, index: int) -> None:
        while not self._stopping:
            end = await self._run(index, self._ready[index])
            if not self._stopping:
                log.error("API worker %d %s; restarting it", index, end)
                await asyncio.sleep(RESTART_PAUSE_S)

    async def _run(self, index: int, ready: asyncio.Future[None]) -> str:
        """Run one worker until it exits, and return how it ended. The first worker of an index
        resolves `ready`: with a result once it serves, with ModelError if it cannot."""
        try:
            process = await self._spawn(index)
        except OSError as error:  # for example, no free file descriptor
            failure = f"cannot be started: {error}"
            if not ready.done():
                ready.set_exception(ModelError(f"an API worker {failure}"))
            return failure
        failure = await self._follow(process, ready)
        if not ready.done():
            ready.set_exception(ModelError(failure))
        code = await process.wait()
        self._forget_metrics(process.pid)
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
        with contextlib.suppress(ConnectionError):  # the worker has died; `_follow` notices it
            process.stdin.write(
                encode_message(self._task) + encode_message(ModelStates(self._fleet.states))
            )
            await process.stdin.drain()
        if self._stopping:  # `stop` was called while the worker was spawned
            _send(process, Stop())
        return process

    async def _follow(
        self, process: asyncio.subprocess.Process, ready: asyncio.Future[None]
    ) -> str:
        """Handle a worker's messages until it exits. Returns the message of the error to report if
        the worker exits before it is ready."""
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
                    case command:
                        running = asyncio.create_task(self._execute_command(process, command))
                        self._commands.add(running)
                        running.add_done_callback(self._commands.discard)
        except ValueError:  # an invalid or incomplete line
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return failure

    async def _execute_command(self, process: asyncio.subprocess.Process, command: Command) -> None:
        _send(process, await execute_command(self._fleet, command))

    def _send_states(self, states: States) -> None:
        message = ModelStates(dict(states))
        for process in self._processes.values():
            _send(process, message)

    def _forget_metrics(self, pid: int) -> None:
        """Remove the gauges of an ended worker from the metrics. Its counters stay."""
        from prometheus_client.multiprocess import mark_process_dead

        mark_process_dead(pid, self._metrics_dir)  # type: ignore[no-untyped-call]
        trim_metrics_files(Path(self._metrics_dir), pid)


def _send(process: asyncio.subprocess.Process, message: ToWorker) -> None:
    """Send a message to a worker, unless its pipe is closed. To stop a worker, a message is used
    instead of a signal: an operator's signal may have reached the worker too, and a second signal
    would stop it at once."""
    assert process.stdin is not None
    if not process.stdin.is_closing():  # uvloop raises if it is
        process.stdin.write(encode_message(message))
