"""Runs a language model in this process, for commands that need no server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.adapters.view import AdapterView
from penstock.agent import AgentLoop, load_runners
from penstock.base.errors import ModelError
from penstock.cli.pull import fetch_model
from penstock.config import EngineSettings, read_environment
from penstock.engine.adapters.catalog import local_adapter_catalog
from penstock.engine.local import LocalEngine
from penstock.engine.types import NO_TEXT
from penstock.models.loader.sampling_defaults import operator_sampling


@dataclass(frozen=True)
class LocalModel:
    """A running model.

    `name`: the id of the model.
    `engine`: the engine, which runs in a thread.
    `agent`: answers requests with the engine.
    `adapters`: the loaded LoRA adapters.
    """

    name: str
    engine: LocalEngine
    agent: AgentLoop
    adapters: AdapterView


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that Ctrl-C left unfinished, before the engine is closed."""
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def local_model(settings: EngineSettings) -> Iterator[tuple[asyncio.AbstractEventLoop, LocalModel]]:
    """Context manager that starts the model of `settings`. Yields the model with its event loop,
    which the caller must run. Raises ModelError."""
    files = fetch_model(settings.model)
    loop = asyncio.new_event_loop()
    try:
        engine = loop.run_until_complete(LocalEngine.start(settings))
        live = AdapterView(limits=settings.lora)
        adapters = local_adapter_catalog(settings.lora, read_environment(), engine, live)
        try:
            if adapters is not None:
                loop.run_until_complete(adapters.preload())
            sampling = operator_sampling(settings)
            runners = load_runners(files, engine, settings.tool_call_parser, live, sampling)
            if runners.generator is None:
                raise ModelError(NO_TEXT)
            agent = runners.generator
            with contextlib.closing(agent):
                yield loop, LocalModel(engine.info.model_id, engine, agent, live)
        finally:
            loop.run_until_complete(_cancel_all(loop))
            if adapters is not None:
                loop.run_until_complete(adapters.close())
            loop.run_until_complete(engine.close())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
