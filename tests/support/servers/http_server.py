"""Our HTTP server on loopback, in the test's own event loop, over a scripted turn loop."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import msgspec
import openai

from penstock.adapters.registry import LoadedAdapter
from penstock.adapters.view import AdapterView
from penstock.agent import AgentLoop, Runners, load_runners
from penstock.agent.server_tools import ServerTools
from penstock.api.app import create_app
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.models.served_model import LoadedModel, ModelControl, ServedModel
from penstock.api.observability.metrics import Metrics
from penstock.api.services import Services
from penstock.api.serving.sockets import bind_socket, url_of
from penstock.api.serving.uvicorn_server import HttpServer
from penstock.base.errors import Unavailable
from penstock.config import EngineSettings, ServerSettings
from penstock.dialog import (
    Event,
    GenerateRequest,
    PartEnded,
    PartStarted,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    TokenLogprob,
    TurnEnded,
    Usage,
)
from penstock.engine.adapters.catalog import AdapterCatalog, AdapterLoadRequest
from penstock.engine.local import LocalEngine
from penstock.engine.processes.fleet import ModelState
from penstock.engine.protocol import Engine
from penstock.models.hub.sources import files_at
from penstock.store import Store
from tests.support.openapi_checks import check_answer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stores import opened, store_settings

MODEL = "scripted-model"
CREATED = 1_700_000_000
FINGERPRINT = "penstock-0-fp_scripted"
USAGE = Usage(
    prompt_tokens=7,
    completion_tokens=4,
    cached_tokens=3,
    reasoning_tokens=1,
    prompt_time_s=0.5,
    completion_time_s=0.25,
)

Step = Event | asyncio.Event | Exception
Script = Callable[[GenerateRequest], Iterable[Step]]


def spoken(*pieces: str) -> Script:
    """Return a script in which every choice writes these pieces, in turns, with logprobs if
    requested."""

    def script(request: GenerateRequest) -> Iterable[Step]:
        prompt_tokens = USAGE.prompt_tokens
        yield RunStarted(request.model or "?", CREATED, prompt_tokens, fingerprint=FINGERPRINT)
        for choice in range(request.n):
            yield PartStarted(choice, 0, "text")
        for number, piece in enumerate(pieces):
            for choice in range(request.n):
                said = "".join(pieces[:number])
                yield TextDelta(choice, 0, piece, logprobs_of(request, piece, len(said)))
        for choice in range(request.n):
            yield PartEnded(choice, 0, Text("".join(pieces)))
            yield TurnEnded(choice, "stop", USAGE)
        yield RunEnded("completed", USAGE)

    return script


def logprobs_of(request: GenerateRequest, piece: str, offset: int) -> tuple[TokenLogprob, ...]:
    if request.top_logprobs is None:
        return ()
    top = tuple((100 + k, b"alt%d" % k, -1.0 - k) for k in range(request.top_logprobs))
    return (TokenLogprob(5, piece.encode(), -0.25, top, offset),)


class ScriptedLoop:
    """Plays a script for each request: yields events, waits for asyncio.Events, raises. Reports
    USAGE.prompt_tokens for every prompt."""

    sampling_defaults = None

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.running = 0
        self.cut_short = 0

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        self.running += 1
        finished = False
        try:
            for step in self.script(request):
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
                    await asyncio.sleep(0)
            finished = True
        finally:
            self.running -= 1
            self.cut_short += not finished

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        return request

    async def count(self, request: GenerateRequest) -> int:
        self.requests.append(request)
        return USAGE.prompt_tokens


class ScriptedControl:
    """A fleet for the models of a test, without engine processes. `loads` and `unloads` name the
    models of each call; a load waits for `gate`. `catalog`: a real one, for the adapters of MODEL.
    """

    def __init__(self, catalog: AdapterCatalog | None = None) -> None:
        self.catalog = catalog
        self.registry: ModelCatalog | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.failing = False
        self.loads: list[str] = []
        self.unloads: list[str] = []

    async def load(self, model: str) -> None:
        assert self.registry is not None
        self.loads.append(model)
        if self.registry[model].status != "loaded":
            self._tell(model, ModelState("reloading"))
            await self.gate.wait()
            if self.failing:
                self._tell(model, ModelState("unloaded", "no memory at /dev/mem"))
                raise Unavailable("could not be loaded", code="model_load_failed")
        self._tell(model, ModelState("loaded"))

    async def unload(self, model: str) -> None:
        assert self.registry is not None
        self.unloads.append(model)
        self._tell(model, ModelState("unloaded"))

    async def load_adapter(self, model: str, order: AdapterLoadRequest) -> LoadedAdapter:
        assert self.catalog is not None
        return await self.catalog.load(order)

    async def unload_adapter(self, model: str, alias: str, expected: str | None) -> LoadedAdapter:
        assert self.catalog is not None
        return await self.catalog.unload(alias, expected)

    async def sync(self) -> None:
        return None

    def tell_adapters(self) -> None:
        """Notify the server that the adapters of MODEL have changed."""
        self._tell(MODEL, ModelState("loaded"))

    def _tell(self, model: str, state: ModelState) -> None:
        assert self.registry is not None
        if self.catalog is not None and model == MODEL:
            state = msgspec.structs.replace(state, adapters=self.catalog.adapters)
        self.registry.apply({model: state})


def registry_of(
    loops: Mapping[str, ScriptedLoop | AgentLoop | Runners],
    engine: Engine,
    control: ModelControl,
    *,
    on_demand: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    default: str | None = None,
    adapters: AdapterView | None = None,
) -> ModelCatalog:
    """Make a catalog of models that answer by these loops; those `on_demand` are not loaded yet."""

    def opener(loop: Any) -> Callable[[], Awaitable[LoadedModel]]:
        async def close() -> None:
            return None

        async def opened() -> LoadedModel:
            runners = loop if isinstance(loop, Runners) else Runners(loop)
            return LoadedModel(runners, engine, lambda: True, close)

        return opened

    models = [
        ServedModel(
            name,
            opener(loop),
            control,
            on_demand=name in on_demand,
            adapters=adapters if name == MODEL else None,
        )
        for name, loop in loops.items()
    ]
    registry = ModelCatalog(models, aliases=aliases, default=default)
    registry.apply({name: ModelState("loaded") for name in loops if name not in on_demand})
    return registry


@dataclass
class Serving:
    """A running server and its clients."""

    url: str
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    server: HttpServer
    services: Services
    loop: ScriptedLoop
    control: ScriptedControl

    async def until(self, condition: Callable[[], bool]) -> None:
        """Run the event loop until the condition holds; the test's own timeout limits it."""
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving_folder(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[Serving, LocalEngine]]:
    """Run a server over the model of a folder, with its engine in this process; yield both."""
    engine = await LocalEngine.start(EngineSettings(model=str(folder), threads=2, **settings))
    try:
        runners = load_runners(files_at(folder, MODEL), engine)
        async with serving(models={MODEL: runners}, engine=engine) as server:
            yield server, engine
        await runners.close()
    finally:
        await engine.close()


@asynccontextmanager
async def serving(
    script: Script = spoken("Hel", "lo", "!"),  # noqa: B008
    *,
    settings: ServerSettings = ServerSettings(),  # noqa: B008
    models: Mapping[str, ScriptedLoop | AgentLoop | Runners] | None = None,
    metrics: Metrics | None = None,
    store: Store | None = None,
    on_demand: Collection[str] = (),
    aliases: Mapping[str, str] | None = None,
    default: str | None = None,
    engine: Engine | None = None,
    adapters: AdapterView | None = None,
    catalog: AdapterCatalog | None = None,
    adapter_updates: bool = False,
    tools: ServerTools | None = None,
) -> AsyncIterator[Serving]:
    """Run a server on a free port of loopback until the block ends. `store` None: a new one.
    `adapters` and `catalog` are those of MODEL. `tools`: the tools that the loops use."""
    loop, control = ScriptedLoop(script), ScriptedControl(catalog)
    control.registry = registry_of(
        models or {MODEL: loop},
        engine or ScriptedEngine([1]),
        control,
        on_demand=on_demand,
        aliases=aliases,
        default=default,
        adapters=adapters,
    )
    if catalog is not None:
        control.tell_adapters()
    await asyncio.gather(*(model.started() for model in control.registry.values()))
    async with AsyncExitStack() as stack:
        if store is None:
            folder = stack.enter_context(TemporaryDirectory(prefix="penstock-store-"))
            store = await stack.enter_async_context(opened(store_settings(Path(folder))))
        async with _serving(
            loop, control, settings, metrics, store, adapter_updates, tools
        ) as running:
            yield running


@asynccontextmanager
async def _serving(
    loop: ScriptedLoop,
    control: ScriptedControl,
    settings: ServerSettings,
    metrics: Metrics | None,
    store: Store,
    adapter_updates: bool,
    tools: ServerTools | None,
) -> AsyncIterator[Serving]:
    assert control.registry is not None
    services = Services(
        models=control.registry,
        control=control,
        store=store,
        settings=settings,
        metrics=metrics or (None if settings.disable_metrics else Metrics()),
        adapter_updates=adapter_updates,
        tools=tools,
        created=CREATED,
    )
    started = asyncio.Event()
    server = HttpServer(create_app(services), settings, on_started=started.set)
    bound = bind_socket("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    await started.wait()
    url = url_of(bound)
    hooks = {"response": [check_answer]}  # every answer must conform to the OpenAPI document
    # Loading CA certificates, which no test needs, would dominate the time of a short test.
    plain = openai.DefaultAsyncHttpxClient(verify=False)
    async with (
        httpx.AsyncClient(base_url=url, timeout=30, event_hooks=hooks, verify=False) as http,
        openai.AsyncOpenAI(
            base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=plain
        ) as client,
    ):
        yield Serving(url, http, client, server, services, loop, control)
    server.stop()
    server.stop()
    await task
    await services.close()


def frames_of(body: str) -> list[str]:
    """Return the `data` of each unnamed event of a stream."""
    return [
        block.removeprefix("data: ")
        for block in body.split("\n\n")
        if block and not block.startswith(":")
    ]
