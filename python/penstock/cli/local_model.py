"""Runs a language model in this process, for commands that need no server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.adapters.view import AdapterView
from penstock.agent import AgentLoop, SharedState, load_runners
from penstock.agent.in_memory import MemoryApprovals, MemoryFiles
from penstock.agent.lazy_fetcher import LazyFetcher
from penstock.agent.model_media import MediaAccess
from penstock.agent.server_tools import ServerTools
from penstock.base.errors import ModelError
from penstock.cli.pull import fetch_model
from penstock.config import AgentSettings, EngineSettings, MediaSettings, read_environment
from penstock.engine.adapters.catalog import local_adapter_catalog
from penstock.engine.local import LocalEngine
from penstock.engine.types import NO_TEXT
from penstock.models.loader.model_kind import model_kind
from penstock.models.loader.sampling_defaults import operator_sampling

DECISION_S = 24 * 3600.0
"""Seconds for a decision: the person at the terminal may take their time."""


@dataclass(frozen=True)
class LocalModel:
    """A running model.

    `name`: the id of the model.
    `transcribes`: the model writes transcripts and needs no question.
    `engine`: the engine, which runs in a thread.
    `agent`: answers requests with the engine.
    `adapters`: the loaded LoRA adapters.
    `approvals`: the open approvals of tools.
    """

    name: str
    transcribes: bool
    engine: LocalEngine
    agent: AgentLoop
    adapters: AdapterView
    approvals: MemoryApprovals


async def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that Ctrl-C left unfinished, before the engine is closed."""
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def local_model(
    settings: EngineSettings,
    agent: AgentSettings | None = None,
    media: MediaSettings = MediaSettings(),  # noqa: B008
) -> Iterator[tuple[asyncio.AbstractEventLoop, LocalModel]]:
    """Context manager that starts the model of `settings`. Yields the model with its event loop,
    which the caller must run. Raises ModelError, and SettingsError for tools that cannot be used.

    - `agent`: the tools that run in this process; None: none.
    - `media`: the limits of images, audio and video.
    """
    files = fetch_model(settings.model)
    loop = asyncio.new_event_loop()
    try:
        engine = loop.run_until_complete(LocalEngine.start(settings))
        live = AdapterView(limits=settings.lora)
        adapters = local_adapter_catalog(settings.lora, read_environment(), engine, live)
        approvals = MemoryApprovals(timeout_s=DECISION_S)
        tools: ServerTools | None = None
        try:
            if agent is not None:
                tools = ServerTools(agent, MemoryFiles(), approvals)
                loop.run_until_complete(tools.start())
            if adapters is not None:
                loop.run_until_complete(adapters.preload())
            sampling = operator_sampling(settings)
            provider = None if tools is None else tools.provider
            state = SharedState(tools=provider, media=MediaAccess(media, LazyFetcher()))
            runners = load_runners(files, engine, settings.tool_call_parser, live, sampling, state)
            if runners.generator is None:
                raise ModelError(runners.refusal(NO_TEXT))
            answers = runners.generator
            try:
                name, transcribes = engine.info.model_id, model_kind(files) == "transcription"
                yield loop, LocalModel(name, transcribes, engine, answers, live, approvals)
            finally:
                loop.run_until_complete(runners.close())
        finally:
            loop.run_until_complete(_cancel_all(loop))
            if tools is not None:
                loop.run_until_complete(tools.close())
            if adapters is not None:
                loop.run_until_complete(adapters.close())
            loop.run_until_complete(engine.close())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
