"""A model in the calling process: its engine and what answers requests over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.adapters.view import AdapterView
from penstock.agent import Runners, load_runners
from penstock.config import EngineSettings, read_environment
from penstock.engine.adapters.catalog import AdapterCatalog, local_adapter_catalog
from penstock.engine.local import LocalEngine
from penstock.models.hub.hub_access import hub_access_of
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import resolve_model
from penstock.models.loader.sampling_defaults import operator_sampling


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model in this process. `max_num_seqs`: sequences that the engine runs at once. `close` ends
    the engine. `adapters` None: there is no LoRA runtime."""

    runners: Runners
    max_num_seqs: int
    close: Callable[[], Awaitable[None]]
    adapters: AdapterCatalog | None = None


async def start_embedded_model(settings: EngineSettings) -> EmbeddedModel:
    """Load the engine and the text side at the same time. Raises ModelError."""
    files = asyncio.create_task(asyncio.to_thread(_find_files, settings))
    try:
        engine = await LocalEngine.start(settings)
    except BaseException:
        files.cancel()
        await asyncio.gather(files, return_exceptions=True)  # the engine's error is raised
        raise
    live = AdapterView(limits=settings.lora)
    adapters: AdapterCatalog | None = None

    async def close() -> None:
        if adapters is not None:
            await adapters.close()
        await engine.close()

    try:
        sampling = operator_sampling(settings)
        runners = await asyncio.to_thread(
            load_runners, await files, engine, settings.tool_call_parser, live, sampling
        )
        adapters = local_adapter_catalog(settings.lora, read_environment(), engine, live)
        if adapters is not None:
            await adapters.preload()
    except BaseException:
        await close()
        raise
    return EmbeddedModel(runners, engine.info.max_num_seqs, close, adapters)


def _find_files(settings: EngineSettings) -> ModelFiles:
    environment = read_environment()
    return resolve_model(settings.model, environment.home, hub_access_of(environment))
