"""What answers in your own process: the turn loop over a local engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock.adapters.live import LiveAdapters
from penstock.agent import Loop, load_loop
from penstock.config import EngineSettings, read_environment
from penstock.engine.adapter_host import AdapterHost, host_adapters
from penstock.engine.local import LocalEngine
from penstock.models.files import ModelFiles
from penstock.models.hub_access import hub_of
from penstock.models.sampling_defaults import asked_sampling
from penstock.models.sources import resolve_model


@dataclass(frozen=True, slots=True)
class Host:
    """What answers: the turn loop, how many sequences it runs at once, and how to end its engine.
    `adapters` None: there is no LoRA runtime."""

    loop: Loop
    max_seqs: int
    close: Callable[[], Awaitable[None]]
    adapters: AdapterHost | None = None


async def start_host(settings: EngineSettings) -> Host:
    """Load engine and text side at the same time."""
    files = asyncio.create_task(asyncio.to_thread(_find_files, settings))
    try:
        engine = await LocalEngine.start(settings)
    except BaseException:
        files.cancel()
        await asyncio.gather(files, return_exceptions=True)  # what it met is the engine's to tell
        raise
    live = LiveAdapters(limits=settings.lora)
    adapters: AdapterHost | None = None

    async def close() -> None:
        if adapters is not None:
            await adapters.close()
        await engine.close()

    try:
        sampling = asked_sampling(settings)
        loop = await asyncio.to_thread(
            load_loop, await files, engine, settings.tool_syntax, live, sampling
        )
        adapters = host_adapters(settings.lora, read_environment(), engine, live)
        if adapters is not None:
            await adapters.preload()
    except BaseException:
        await close()
        raise
    return Host(loop, engine.info.max_seqs, close, adapters)


def _find_files(settings: EngineSettings) -> ModelFiles:
    environment = read_environment()
    return resolve_model(settings.model, environment.home, hub_of(environment))
