"""Answers the turns of a terminal chat with an engine in this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from penstock.agent.in_memory import MemoryApprovals
from penstock.base.errors import Conflict, ModelError
from penstock.cli.chat.backend import ActiveModel, Decision, ModelChoice
from penstock.cli.chat.chat_settings import checked_request
from penstock.cli.chat.conversation import Turn
from penstock.cli.local_model import LocalModel, start_local_model
from penstock.cli.pull import fetch_model
from penstock.config import AgentSettings, EngineSettings, MediaSettings, read_environment
from penstock.dialog import Event, GenerateRequest
from penstock.models.hub.catalogue import CATALOGUE, EMBEDDING_MODEL
from penstock.models.hub.model_files import ModelFiles
from penstock.models.hub.sources import is_fetched

HERE: Final = "in this process"


@dataclass(frozen=True)
class LocalOptions:
    """The options of the engine in this process. `agent`: its tools; None: none."""

    engine: EngineSettings
    agent: AgentSettings | None
    media: MediaSettings


class LocalBackend:
    """Runs one model at a time."""

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._running: LocalModel | None = None

    async def start(self, files: ModelFiles) -> None:
        """Load the model of the options. Raises ModelError and SettingsError."""
        options = self._options
        self._running = await start_local_model(files, options.engine, options.agent, options.media)

    @property
    def model(self) -> ActiveModel:
        running = self._started
        defaults = running.agent.sampling_defaults
        values = {} if defaults is None else defaults.values
        return ActiveModel(
            name=running.name,
            place=HERE,
            defaults={name: value for name, value in values.items() if value is not None},
            adapters=tuple(adapter.alias for adapter in running.adapters.all),
            tools=enabled_tools(self._options.agent),
            transcribes=running.transcribes,
        )

    @property
    def choices(self) -> Sequence[ModelChoice]:
        home = read_environment().home
        return [
            ModelChoice(entry.name, "downloaded" if is_fetched(entry, home) else "not downloaded")
            for entry in CATALOGUE.values()
            if entry.name != EMBEDDING_MODEL
        ]

    async def run(self, turn: Turn) -> AsyncGenerator[Event, None]:
        async for event in self._started.agent.run(request_of(turn)):
            yield event

    async def use(self, name: str) -> None:
        before = self._options
        files = fetch_model(name)
        # Two models may not fit in memory, so the old one is closed first.
        await self.close()
        self._options = LocalOptions(
            msgspec.structs.replace(before.engine, model=name), before.agent, before.media
        )
        try:
            await self.start(files)
        except ModelError:
            self._options = before
            await self.start(fetch_model(before.engine.model))
            raise

    async def decide(
        self, id: str, decision: Decision, message: str | None, *, remember: bool
    ) -> None:
        approvals: MemoryApprovals = self._started.approvals
        if not approvals.decide(id, decision, message, remember=remember):
            raise Conflict("the call no longer waits for a decision")

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.close()

    @property
    def _started(self) -> LocalModel:
        if self._running is None:
            raise ModelError("no model is loaded; /model NAME loads one")
        return self._running


def request_of(turn: Turn) -> GenerateRequest:
    """Return the request to the engine for a turn. Raises InvalidRequest."""
    request = checked_request(turn.settings)
    container = turn.container if request.hosted else None
    return msgspec.structs.replace(request, messages=turn.messages, container=container)


def enabled_tools(agent: AgentSettings | None) -> tuple[str, ...]:
    """Return the names of the tools that the settings enable."""
    if agent is None:
        return ()
    offered = (
        (agent.enable_search, "search"),
        (agent.enable_code_execution, "code"),
        (agent.enable_shell, "shell"),
    )
    return tuple(name for enabled, name in offered if enabled)
