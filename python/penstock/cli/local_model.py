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
from penstock.cli.event_loops import cancel_all, event_loop
from penstock.cli.pull import fetch_model
from penstock.config import AgentSettings, EngineSettings, MediaSettings, read_environment
from penstock.engine.adapters.catalog import local_adapter_catalog
from penstock.engine.local import LocalEngine
from penstock.engine.types import NO_TEXT
from penstock.models.hub.model_files import ModelFiles
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
    _closing: contextlib.AsyncExitStack

    async def close(self) -> None:
        """Stop the tools and the engine."""
        await self._closing.aclose()


async def start_local_model(
    files: ModelFiles,
    settings: EngineSettings,
    agent: AgentSettings | None = None,
    media: MediaSettings = MediaSettings(),  # noqa: B008
) -> LocalModel:
    """Start the model of `settings`, whose files are `files`. Raises ModelError, and SettingsError
    for tools that cannot be used.

    - `agent`: the tools that run in this process; None: none.
    - `media`: the limits of images, audio and video.
    """
    async with contextlib.AsyncExitStack() as stack:
        engine = await LocalEngine.start(settings)
        stack.push_async_callback(engine.close)
        live = AdapterView(limits=settings.lora)
        adapters = local_adapter_catalog(settings.lora, read_environment(), engine, live)
        if adapters is not None:
            stack.push_async_callback(adapters.close)
        approvals = MemoryApprovals(timeout_s=DECISION_S)
        provider = None
        if agent is not None:
            tools = ServerTools(agent, MemoryFiles(), approvals)
            stack.push_async_callback(tools.close)
            await tools.start()
            provider = tools.provider
        if adapters is not None:
            await adapters.preload()
        sampling = operator_sampling(settings)
        state = SharedState(tools=provider, media=MediaAccess(media, LazyFetcher()))
        runners = load_runners(files, engine, settings.tool_call_parser, live, sampling, state)
        if runners.generator is None:
            raise ModelError(runners.refusal(NO_TEXT))
        stack.push_async_callback(runners.close)
        return LocalModel(
            name=engine.info.model_id,
            transcribes=model_kind(files) == "transcription",
            engine=engine,
            agent=runners.generator,
            adapters=live,
            approvals=approvals,
            _closing=stack.pop_all(),
        )


@contextlib.contextmanager
def local_model(
    settings: EngineSettings,
    agent: AgentSettings | None = None,
    media: MediaSettings = MediaSettings(),  # noqa: B008
) -> Iterator[tuple[asyncio.AbstractEventLoop, LocalModel]]:
    """Context manager that downloads and starts the model of `settings`. Yields the model with its
    event loop, which the caller must run. Raises the errors of `start_local_model`."""
    files = fetch_model(settings.model)
    with event_loop() as loop:
        model = loop.run_until_complete(start_local_model(files, settings, agent, media))
        try:
            yield loop, model
        finally:
            loop.run_until_complete(cancel_all())
            loop.run_until_complete(model.close())
