"""Starts a model in the calling process: its engine and its runner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.adapters.view import AdapterView
from penstock.agent import Runners, SharedState, load_runners
from penstock.agent.in_memory import MemoryApprovals, MemoryFiles
from penstock.agent.lazy_fetcher import LazyFetcher
from penstock.agent.model_media import MediaAccess
from penstock.agent.server_tools import ServerTools
from penstock.config import AgentSettings, EngineSettings, read_environment
from penstock.engine.adapters.catalog import AdapterCatalog, local_adapter_catalog
from penstock.engine.local import LocalEngine
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.sampling_defaults import operator_sampling


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model in this process.

    - `runners`: the runner that answers requests.
    - `max_num_seqs`: number of sequences that the engine runs at the same time.
    - `close`: stops the engine.
    - `adapters`: the adapter catalog, None without a LoRA runtime.
    - `approvals`: the open approvals of server tools, None without server tools.
    """

    runners: Runners
    max_num_seqs: int
    close: Callable[[], Awaitable[None]]
    adapters: AdapterCatalog | None = None
    approvals: MemoryApprovals | None = None


async def start_embedded_model(
    settings: EngineSettings, agent: AgentSettings | None = None
) -> EmbeddedModel:
    """Start a model's engine and load its runner. The engine starts while the files of the model
    are being found. Raises ModelError, and SettingsError for tools that cannot be used.

    `agent`: the tools that this process runs, None for none.
    """
    files = asyncio.create_task(asyncio.to_thread(_find_files, settings))
    try:
        engine = await LocalEngine.start(settings)
    except BaseException:
        files.cancel()
        await asyncio.gather(files, return_exceptions=True)  # the engine's error is raised
        raise
    live = AdapterView(limits=settings.lora)
    adapters: AdapterCatalog | None = None
    approvals = MemoryApprovals()
    tools: ServerTools | None = None

    async def close() -> None:
        if tools is not None:
            await tools.close()
        if adapters is not None:
            await adapters.close()
        await engine.close()

    try:
        sampling = operator_sampling(settings)
        media = MediaAccess(fetcher=LazyFetcher())
        state = SharedState(media=media)
        if agent is not None:
            tools = ServerTools(agent, MemoryFiles(), approvals)
            await tools.start()
            state = SharedState(tools=tools.provider, media=media)
        runners = await asyncio.to_thread(
            load_runners, await files, engine, settings.tool_call_parser, live, sampling, state
        )
        adapters = local_adapter_catalog(settings.lora, read_environment(), engine, live)
        if adapters is not None:
            await adapters.preload()
    except BaseException:
        await close()
        raise
    open_approvals = None if tools is None else approvals
    return EmbeddedModel(runners, engine.info.max_num_seqs, close, adapters, open_approvals)


def _find_files(settings: EngineSettings) -> ModelFiles:
    environment = read_environment()
    return resolve_model(
        settings.model, environment.home, hub_access_of(environment), mmproj=settings.mmproj
    )
