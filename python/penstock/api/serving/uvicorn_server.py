"""Serves an application on a socket with uvicorn, with our limits and signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from penstock.api.http.uvicorn_protocol import BoundedProtocol, bounded_protocol
from penstock.config import ServerSettings

log = logging.getLogger(__name__)

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# Seconds. Longer than the idle timeout of common client connection pools, so that the client closes
# an idle connection first.
IDLE_TIMEOUT_S: Final = 75


class HttpServer(uvicorn.Server):
    """The HTTP server of one API process. The first SIGTERM or SIGINT drains it: it accepts no new
    connections, and open requests may continue for `drain_timeout_s` seconds. The second signal
    stops it at once.

    `on_started`: called once the server accepts connections.
    `handles_signals`: if False, no signal handlers are installed, and the owner calls `stop`.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        on_started: Callable[[], None] | None = None,
        *,
        handles_signals: bool = True,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=bounded_protocol(settings.max_connections),
                loop="none",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=IDLE_TIMEOUT_S,
                timeout_graceful_shutdown=math.ceil(settings.drain_timeout_s),
            )
        )
        self._on_started = on_started
        self._handles_signals = handles_signals
        self._drain_timeout_s = settings.drain_timeout_s
        _forward_uvicorn_log()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_started is not None:
            self._on_started()

    def stop(self) -> None:
        """Drain the server. The second call closes all connections at once."""
        if self.should_exit:
            self.force_exit = True
            for connection in list(self.server_state.connections):
                assert isinstance(connection, BoundedProtocol)
                connection.stop()
        elif self._handles_signals:
            log_draining(self._drain_timeout_s)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals with `stop` until the block ends, if `handles_signals`. uvicorn's own
        handlers ignore a second SIGTERM."""
        on_main_thread = threading.current_thread() is threading.main_thread()
        if not (self._handles_signals and on_main_thread):
            yield
            return
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in STOP_SIGNALS:
                loop.remove_signal_handler(number)


def log_draining(drain_timeout_s: float) -> None:
    """Log that the server drains, and that a second signal stops it at once."""
    log.info(
        "stopping: open requests have %g s to finish; a second Ctrl-C or SIGTERM ends them at once",
        drain_timeout_s,
    )


def _forward_uvicorn_log() -> None:
    """Send uvicorn's warnings to the handlers of our own log."""
    uvicorn_log = logging.getLogger("uvicorn")
    uvicorn_log.handlers[:] = logging.getLogger("penstock").handlers
    uvicorn_log.setLevel(logging.WARNING)
