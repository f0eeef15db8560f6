"""One of several API processes: `python -m penstock.api.worker`; see `workers.WorkerTask`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys

import msgspec
import uvloop

from penstock.api.access_log import configure_access_log
from penstock.api.process import ApiProcess
from penstock.api.serving import HttpServer
from penstock.api.workers import WorkerStatus, WorkerTask
from penstock.base.errors import ModelError
from penstock.base.logs import configure_logging
from penstock.config import SettingsError


def main() -> int:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerTask)
    settings = task.server_settings
    configure_logging()
    configure_access_log(settings.access_log_format, enabled=not settings.disable_access_log)
    try:
        uvloop.run(_serve(task))
    except (ModelError, SettingsError) as error:
        _say(WorkerStatus(failure=str(error)))
        return 1
    return 0


async def _serve(task: WorkerTask) -> None:
    main_task = asyncio.current_task()
    assert main_task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, main_task.cancel)
    api = ApiProcess(
        task.engine_settings,
        task.server_settings,
        task.socket_path,
        metrics_dir=task.metrics_dir,
    )
    with contextlib.suppress(asyncio.CancelledError):
        try:
            info = (await api.start()).info

            def started(server: HttpServer) -> None:
                loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, loop, server)
                _say(WorkerStatus(info=info))

            with socket.socket(fileno=task.listener) as bound:
                await api.serve(bound, started)
        finally:
            await api.close()


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, server: HttpServer) -> None:
    """Standard input ends with the parent; without it there is no engine either."""
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        server.stop()


def _say(status: WorkerStatus) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
