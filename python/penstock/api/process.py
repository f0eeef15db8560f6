"""One API process: an engine's client, its model's text side, the store, and the HTTP server."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.agent import FileAttachments, Runner, load_runner, loop_over
from penstock.api.app import create_app
from penstock.api.latency import MeasuredEngine
from penstock.api.metrics import Metrics
from penstock.api.services import Services
from penstock.api.serving import HttpServer
from penstock.config import EngineSettings, ServerSettings, StoreSettings, read_environment
from penstock.engine.client import EngineClient
from penstock.engine.protocol import Engine
from penstock.models.hub_access import HubAccess
from penstock.models.sources import resolve_model

if TYPE_CHECKING:
    from penstock.store import Store


class ApiProcess:
    """Serves one engine. Make it while the engine loads: its own loading goes on beside that."""

    def __init__(
        self,
        engine_settings: EngineSettings,
        server_settings: ServerSettings,
        socket_path: str,
        *,
        metrics_dir: str | None = None,
    ) -> None:
        self._settings = server_settings
        self._metrics = None if server_settings.disable_metrics else Metrics(metrics_dir)
        self._client = EngineClient(socket_path)
        self._engine: Engine = self._client
        if self._metrics is not None:
            self._engine = MeasuredEngine(self._client, self._metrics)
        self._model = asyncio.ensure_future(
            asyncio.to_thread(_load_model, engine_settings, self._engine)
        )
        located = server_settings.store.located(read_environment().home)
        self._store = asyncio.ensure_future(_open_store(located))
        self._attachments = asyncio.ensure_future(self._make_attachments())

    async def start(self) -> Engine:
        """Return when engine and text side are loaded and the store is open. Raises ModelError,
        SettingsError."""
        await self._model
        await self._attachments
        await self._client.wait_ready()
        return self._engine

    async def serve(self, bound: socket.socket, on_started: Callable[[HttpServer], None]) -> None:
        """Serve until a signal, or `HttpServer.stop`, ends it. Call `start` before."""
        model_id, runner = await self._model
        store, attachments = await self._store, await self._attachments
        loop = loop_over(runner, attachments, sessions=store.sessions)
        services = Services(
            models={model_id: loop},
            engine=self._engine,
            store=store,
            settings=self._settings,
            metrics=self._metrics,
        )
        gc.collect()
        gc.freeze()  # what is loaded stays: no collection walks it in the middle of a stream
        server = HttpServer(
            create_app(services), self._settings, on_started=lambda: on_started(server)
        )
        try:
            await server.serve(sockets=[bound])
        finally:
            await services.close()

    async def close(self) -> None:
        """Let go of the engine; what is still running ends with an error."""
        self._model.cancel()
        await asyncio.gather(self._model, return_exceptions=True)
        await self._client.close()
        await self._close_store()

    async def _make_attachments(self) -> FileAttachments:
        store = await self._store
        return await asyncio.to_thread(_attachments_of, store, self._settings)

    async def _close_store(self) -> None:
        """Also while it opens: that cannot be broken off."""
        opened = await asyncio.gather(self._store, return_exceptions=True)
        await asyncio.gather(self._attachments, return_exceptions=True)
        if not isinstance(opened[0], BaseException):
            await opened[0].close()


async def _open_store(settings: StoreSettings) -> Store:
    return await (await asyncio.to_thread(_import_store)).open(settings)


def _import_store() -> type[Store]:
    # A fifth of a second, in a thread of its own while engine and tokenizer load.
    from penstock.store import Store

    return Store


def _attachments_of(store: Store, settings: ServerSettings) -> FileAttachments:
    # The HTTP client takes a tenth of a second, in a thread as well.
    from penstock.agent.attachments import Attachments
    from penstock.fetch import AllowList, Fetcher

    return Attachments(store.files, Fetcher(AllowList(settings.fetch_allow)))


def _load_model(settings: EngineSettings, engine: Engine) -> tuple[str, Runner]:
    environment = read_environment()
    hub = HubAccess(token=environment.hf_token, cache=environment.hf_home / "hub")
    files = resolve_model(settings.model, environment.home, hub)
    return files.model_id, load_runner(files, engine, settings.tool_syntax)
