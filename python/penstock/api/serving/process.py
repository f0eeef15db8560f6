"""One API process: HTTP, connections to the engines, tokenizers and templates, and the store."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from penstock.adapters.view import AdapterView
from penstock.agent import Runners, SharedState, load_runners
from penstock.agent.attachments import Attachments
from penstock.agent.lazy_fetcher import LazyFetcher
from penstock.agent.model_media import MediaAccess
from penstock.agent.server_tools import ServerTools
from penstock.api.app import create_app
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.models.served_model import LoadedModel, ModelControl, ServedModel
from penstock.api.observability.access_log import AccessLog
from penstock.api.observability.agent_observer import AgentRecorder
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.token_latency import RequestObserver
from penstock.api.services import Services
from penstock.api.serving.tasks import ApiTask, ModelTask
from penstock.api.serving.uvicorn_server import HttpServer
from penstock.base.errors import Unavailable
from penstock.config import EngineSettings, SettingsError, read_environment
from penstock.dialog import EmbeddingRequest
from penstock.engine.ipc.client import EngineClient
from penstock.engine.protocol import Engine
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.sampling_defaults import operator_sampling
from penstock.store.lazy_store import LazyStore
from penstock.store.sql.probe import can_open_immediately

if TYPE_CHECKING:
    from penstock.api.serving.mcp_listener import McpListener

log = logging.getLogger(__name__)

STORE_PAUSE_S: Final = 1.0
"""Seconds after the start at which the store is opened. Its libraries take 0.25 s to load, which
would delay the first requests. A request that needs the store opens it earlier."""

TOOL_STATE_PAUSE_S: Final = 5.0
"""Seconds between updates of the gauges of server tools, with several API processes."""

GC_THRESHOLDS: Final = (20_000, 1, 1)
"""Thresholds of the garbage collector. Each collection traverses the objects of all running
requests, which leave almost no cycles. With Python's default thresholds, collections take a tenth
of the CPU time and pause all streams. Loaded objects are frozen, so a full collection costs little
more than a collection of the youngest generation. Full collections are needed: without them the
process grows by 70 bytes per request, because cycles that were in use during an earlier collection
are never freed."""


class ApiProcess:
    """Serves the models of `task`. The caller must apply engine states to `models` whenever they
    change. A model connects to its engine while the engine is still loading."""

    def __init__(self, task: ApiTask, control: ModelControl) -> None:
        self._settings = task.server
        self._control = control
        self._metrics = None if task.server.disable_metrics else Metrics(task.metrics_dir)
        names = [(model.settings.id, model.settings.aliases) for model in task.models]
        self.models = ModelCatalog(
            [self._served_model(model) for model in task.models],
            aliases={alias: name for name, aliases in names for alias in aliases},
            default=task.default_model_id,
        )
        self._store_settings = task.server.store.with_defaults(read_environment().home)
        self._store = LazyStore(self._store_settings)
        fetcher = LazyFetcher(task.server.fetch_allow)
        self._attachments = Attachments(self._store.files, fetcher)
        self._media = MediaAccess(task.server.media, fetcher)
        self._access_log = None
        if not task.server.disable_access_log:
            self._access_log = AccessLog(task.server.access_log_format)
        self._tools = self._server_tools()
        self._mcp: McpListener | None = None

    async def check_store(self) -> None:
        """Open the store now, unless it is certain that it can be opened later. `start` calls this
        too. Raises SettingsError."""
        if not await asyncio.to_thread(can_open_immediately, self._store_settings):
            await self._store.open()

    async def start(self) -> None:
        """Open the store if necessary, start the server tools, and wait until all models with a
        running engine are connected. Raises ModelError and SettingsError."""
        await asyncio.gather(
            self.check_store(),
            self._tools.start(),
            *(model.started() for model in self.models.values()),
        )
        if self._settings.agent.mcp_port is not None:
            await self._serve_mcp(self._settings.agent.mcp_port)

    async def serve(
        self,
        bound: socket.socket,
        on_started: Callable[[HttpServer], None],
        *,
        handles_signals: bool = True,
    ) -> None:
        """Serve HTTP until a signal arrives (if `handles_signals`) or `HttpServer.stop` is called.
        `start` must have been called.

        `bound`: the listening socket.
        `on_started`: called with the server once it accepts connections.
        """
        services = Services(
            models=self.models,
            control=self._control,
            store=self._store,
            settings=self._settings,
            metrics=self._metrics,
            adapter_updates=read_environment().lora_updates,
            tools=self._tools,
        )
        gc.freeze()  # exempts loaded objects from collections during streams
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
        server = HttpServer(
            create_app(services),
            self._settings,
            on_started=lambda: on_started(server),
            handles_signals=handles_signals,
        )
        opening = asyncio.create_task(self._open_store())
        reporting = asyncio.create_task(self._report_tools())
        try:
            await server.serve(sockets=[bound])
        finally:
            opening.cancel()
            reporting.cancel()
            await services.close()

    async def close(self) -> None:
        """Close the connections to the engines, the server tools and the store. Running requests
        fail."""
        if self._mcp is not None:
            await self._mcp.close()
        await self.models.close()
        await self._tools.close()
        await self._store.close()

    async def _serve_mcp(self, port: int) -> None:
        """Serve MCP on a port of its own, which all workers share. Raises OSError."""
        from penstock.api.serving.mcp_listener import McpListener
        from penstock.api.serving.sockets import bind_socket

        shared = self._settings.workers > 1
        bound = bind_socket(self._settings.host, port, shared=shared)
        self._mcp = McpListener(self.models, self._tools, self._settings, bound)
        await self._mcp.start()

    def _server_tools(self) -> ServerTools:
        metrics = self._metrics.agent if self._metrics is not None else None
        return ServerTools(
            self._settings.agent,
            self._store.files,
            self._store.approvals,
            self._store.skills,
            fetch_allow=self._settings.fetch_allow,
            embed=self._embed,
            observer=AgentRecorder(metrics, self._access_log),
        )

    async def _report_tools(self) -> None:
        """Keep the gauges of server tools current for the other API processes, which expose them
        too. A process sets its own when it exposes them."""
        while self._metrics is not None and self._settings.workers > 1:
            self._metrics.agent.show_state(self._tools)
            await asyncio.sleep(TOOL_STATE_PAUSE_S)

    async def _embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return embeddings of texts by the first loaded embedding model. Raises ServiceError."""
        request = EmbeddingRequest(tuple(texts), truncate=True)
        for model in self.models.values():
            if model.status == "loaded" and model.embeds:
                found = await model.embed(request)
                vectors = np.frombuffer(found.vectors, "<f4").reshape(len(texts), found.width)
                return vectors.tolist()
        raise Unavailable("no embedding model is loaded")

    async def _open_store(self) -> None:
        await asyncio.sleep(STORE_PAUSE_S)
        try:
            await self._store.open()
        except SettingsError as error:  # may be temporary: the check succeeded a second ago
            log.error("%s; requests that need the store are answered with 503", error)
        gc.freeze()

    def _served_model(self, model: ModelTask) -> ServedModel:
        settings = model.settings
        adapters = AdapterView(self._control.sync, settings.engine.lora)
        return ServedModel(
            settings.id,
            lambda: self._open_model(settings.engine, model.socket_path, adapters),
            self._control,
            on_demand=settings.on_demand,
            adapters=adapters,
            settings=settings.engine,
        )

    async def _open_model(
        self, settings: EngineSettings, socket_path: str, adapters: AdapterView
    ) -> LoadedModel:
        """Connect to an engine. Load the model's tokenizer and templates while the engine loads its
        weights. Raises ModelError."""
        client = EngineClient(socket_path, RequestObserver(self._metrics))
        state = SharedState(
            self._attachments, self._store.sessions, self._tools.provider, self._media
        )
        try:
            runners = await asyncio.to_thread(_load_runners, settings, client, adapters, state)
            await client.wait_ready()
        except BaseException:
            await client.close()
            raise

        async def close() -> None:
            await runners.close()
            await client.close()

        return LoadedModel(runners, client, lambda: client.serving, close)


def _load_runners(
    settings: EngineSettings, engine: Engine, adapters: AdapterView, state: SharedState
) -> Runners:
    environment = read_environment()
    files = resolve_model(
        settings.model, environment.home, hub_access_of(environment), mmproj=settings.mmproj
    )
    sampling = operator_sampling(settings)
    return load_runners(files, engine, settings.tool_call_parser, adapters, sampling, state)
