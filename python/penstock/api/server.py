"""`run_server`: the engine process, the API process or processes, from start to shutdown.

The engine is spawned before anything that is slow to import is imported: it loads meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvloop

from penstock import __version__
from penstock.base.host import available_cores
from penstock.config import EngineSettings, ServerSettings
from penstock.engine.supervisor import EngineSupervisor
from penstock.engine.types import EngineInfo

Say = Callable[[str], None]


def run_server(
    engine_settings: EngineSettings, server_settings: ServerSettings, say: Say = print
) -> None:
    """Serve until SIGTERM or SIGINT. `say` gets the memory formula and the ready line.

    Raises ModelError where the model cannot be served, OSError where the address cannot be bound.
    """
    bound = bind_socket(server_settings.host, server_settings.port)
    with bound:
        uvloop.run(_serve(engine_settings, server_settings, bound, say))


async def _serve(
    engine_settings: EngineSettings,
    server_settings: ServerSettings,
    bound: socket.socket,
    say: Say,
) -> None:
    supervisor = EngineSupervisor(engine_settings)
    with contextlib.suppress(asyncio.CancelledError), _cancelled_by_signals():
        try:
            await supervisor.start()
            if server_settings.workers == 1:
                await _serve_here(engine_settings, server_settings, supervisor, bound, say)
            else:
                await _serve_by_workers(engine_settings, server_settings, supervisor, bound, say)
        finally:
            await supervisor.stop()


async def _serve_here(
    engine_settings: EngineSettings,
    server_settings: ServerSettings,
    supervisor: EngineSupervisor,
    bound: socket.socket,
    say: Say,
) -> None:
    # Imported while the engine loads in its own process; a third of a second.
    from penstock.api.process import ApiProcess

    api = ApiProcess(engine_settings, server_settings, supervisor.socket_path)
    try:
        say(await supervisor.wait_ready())
        engine = await api.start()
        line = ready_line(engine.info, engine_settings, bound)
        await api.serve(bound, lambda _: say(line))
    finally:
        await api.close()


async def _serve_by_workers(
    engine_settings: EngineSettings,
    server_settings: ServerSettings,
    supervisor: EngineSupervisor,
    bound: socket.socket,
    say: Say,
) -> None:
    from penstock.api.workers import WorkerGroup, WorkerTask

    task = WorkerTask(engine_settings, server_settings, supervisor.socket_path, bound.fileno())
    group = WorkerGroup(task)
    try:
        await group.start()
        say(await supervisor.wait_ready())
        info = await group.wait_ready()
        say(ready_line(info, engine_settings, bound))
        await group.wait_stopped()
    finally:
        await group.close()


def ready_line(info: EngineInfo, settings: EngineSettings, bound: socket.socket) -> str:
    """What an operator reads, and scripts wait for."""
    cores = settings.threads or available_cores()
    return (
        f"Penstock {__version__} ready on {url_of(bound)} "
        f"(model {info.model_id}, {cores} cores, context {info.context_tokens})"
    )


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet. Raises OSError, which names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"{error.strerror}: {host}:{port}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """Where a client of this machine reaches the socket."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _cancelled_by_signals() -> Iterator[None]:
    """Until the HTTP server takes the signals over, they end the start."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    yield
