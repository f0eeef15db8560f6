"""A model in this process, for the commands that need no server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.agent import AgentLoop, EmbeddingLoop, load_loop
from penstock.cli.fetch import fetch_model
from penstock.config import EngineSettings
from penstock.engine.local import LocalEngine


@dataclass(frozen=True)
class LocalModel:
    """An engine in a thread, and the turn loop over it."""

    name: str
    engine: LocalEngine
    agent: AgentLoop | EmbeddingLoop


@contextlib.contextmanager
def local_model(settings: EngineSettings) -> Iterator[tuple[asyncio.AbstractEventLoop, LocalModel]]:
    """The model that `settings` names, and the loop that it lives in; the loop runs only while the
    caller runs it. Raises ModelError."""
    files = fetch_model(settings.model)
    loop = asyncio.new_event_loop()
    try:
        engine = loop.run_until_complete(LocalEngine.start(settings))
        try:
            agent = load_loop(files, engine, settings.tool_syntax)
            yield loop, LocalModel(engine.info.model_id, engine, agent)
        finally:
            loop.run_until_complete(engine.close())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
