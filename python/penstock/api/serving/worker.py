"""One of several API processes of a server: `python -m penstock.api.serving.worker`.

The worker reads a WorkerTask and then messages from standard input, and exits when that input ends.
It writes its own messages to standard output. `model_control` defines the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import msgspec
import uvloop

from penstock.api.observability.access_log import configure_access_log
from penstock.api.observability.metrics_files import reserve_metrics_files
from penstock.api.serving.model_control import (
    CommandReply,
    FromWorker,
    ModelStates,
    PipeControl,
    Stop,
    WorkerFailed,
    WorkerReady,
    encode_message,
    to_worker_decoder,
)
from penstock.api.serving.process import ApiProcess
from penstock.api.serving.tasks import WorkerTask
from penstock.api.serving.uvicorn_server import STOP_SIGNALS, HttpServer
from penstock.base.errors import ModelError
from penstock.base.logs import configure_logging
from penstock.base.stack_dumps import dump_stacks_on_signal
from penstock.config import SettingsError, limit_malloc_arenas

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Limit of one message, which may describe very many adapters."""


def main() -> int:
    configure_logging()
    dump_stacks_on_signal()
    limit_malloc_arenas()
    try:
        uvloop.run(_serve())
    except (ModelError, SettingsError) as error:
        _send(WorkerFailed(str(error)))
        return 1
    return 0


async def _serve() -> None:
    main_task = asyncio.current_task()
    assert main_task is not None
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:  # the parent handles them and sends Stop
        signal.signal(number, signal.SIG_IGN)
    lines = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    task = _reserve_metrics(msgspec.json.decode(await lines.readline(), type=WorkerTask))
    settings = task.api.server
    configure_access_log(settings.access_log_format, enabled=not settings.disable_access_log)
    control = PipeControl(_send)
    api = ApiProcess(task.api, control)
    parent = _ParentConnection(lines, api, control, main_task)
    with contextlib.suppress(asyncio.CancelledError):
        try:
            await parent.receive()  # the first engine states, which models need to connect
            listening = asyncio.create_task(parent.follow())
            await api.start()

            def started(server: HttpServer) -> None:
                parent.server = server
                _send(WorkerReady(api.models.sampling))

            with (
                socket.socket(fileno=task.listener) as reserved,
                _bind_worker_socket(reserved) as own,
            ):
                await api.serve(own, started, handles_signals=False)
            listening.cancel()
        finally:
            await api.close()
    if parent.is_gone and task.api.metrics_dir is not None:  # the parent cannot remove it
        shutil.rmtree(task.api.metrics_dir, ignore_errors=True)


def _reserve_metrics(task: WorkerTask) -> WorkerTask:
    """Preallocate the metrics files. Returns `task`, with metrics disabled if the disk is full."""
    folder = task.api.metrics_dir
    if folder is None or task.api.server.disable_metrics:
        return task
    try:
        reserve_metrics_files(Path(folder), os.getpid())
    except OSError as error:
        log.error("this API worker serves without metrics: %s: %s", folder, error.strerror)
        server = msgspec.structs.replace(task.api.server, disable_metrics=True)
        return msgspec.structs.replace(task, api=msgspec.structs.replace(task.api, server=server))
    return task


def _bind_worker_socket(reserved: socket.socket) -> socket.socket:
    """Return a new socket of this worker, bound to the address of `reserved`. With one socket per
    worker, the kernel distributes the connections; with one shared socket, the first worker to wake
    would take all waiting connections."""
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    own = socket.socket(reserved.family, reserved.type)
    for level, option in (
        (socket.SOL_SOCKET, socket.SO_REUSEADDR),
        (socket.SOL_SOCKET, socket.SO_REUSEPORT),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    ):
        own.setsockopt(level, option, 1)
    own.bind(reserved.getsockname())
    return own


class _ParentConnection:
    """Receives the messages of the parent process. `is_gone`: True once the parent has closed the
    pipe or exited."""

    def __init__(
        self,
        lines: asyncio.StreamReader,
        api: ApiProcess,
        control: PipeControl,
        main_task: asyncio.Task[None],
    ) -> None:
        self._lines = lines
        self._api = api
        self._control = control
        self._main_task = main_task
        self.server: HttpServer | None = None
        self.is_gone = False

    async def receive(self) -> bool:
        """Handle one message. Returns False if the parent has exited, which also ends all
        engines."""
        line = await self._lines.readline()
        if not line:
            self.is_gone = True
            return False
        match to_worker_decoder.decode(line):
            case ModelStates(states):
                self._api.models.apply(states)
            case CommandReply() as reply:
                self._control.resolve_reply(reply)
            case Stop():
                self._stop()
        return True

    async def follow(self) -> None:
        """Handle messages until the parent closes the pipe, then stop the server: a worker without
        a parent learns neither which models are loaded nor when to stop."""
        try:
            while await self.receive():
                pass
        except Exception:  # the outermost loop of this task
            log.exception("a message of the parent process could not be handled")
        self._stop()

    def _stop(self) -> None:
        """Drain the server, or cancel its start."""
        if self.server is not None:
            self.server.stop()
        else:
            self._main_task.cancel()


def _send(message: FromWorker) -> None:
    sys.stdout.buffer.write(encode_message(message))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
