"""The engine behind a terminal chat: in this process, or a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from penstock.cli.chat.conversation import Turn
from penstock.dialog import Event

Decision = Literal["approve", "deny"]


@dataclass(frozen=True)
class ActiveModel:
    """The model that answers.

    `name`: its id.
    `place`: "in this process", or the URL of the server.
    `defaults`: its own values of settings.
    `adapters`: the aliases of its adapters.
    `tools`: the tools that it may use: `search`, `code`, `shell`.
    `transcribes`: it writes transcripts and needs no question.
    """

    name: str
    place: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    transcribes: bool = False


@dataclass(frozen=True)
class ModelChoice:
    """A model that `/model` can switch to. `note`: its state, such as "downloaded"."""

    name: str
    note: str


class Backend(Protocol):
    """Answers the turns of a chat. Errors are ServiceError or ModelError."""

    @property
    def model(self) -> ActiveModel: ...

    @property
    def choices(self) -> Sequence[ModelChoice]: ...

    def run(self, turn: Turn) -> AsyncGenerator[Event, None]:
        """Return the events of the answer to a turn."""
        ...

    async def use(self, name: str) -> None:
        """Load the model `name` and answer with it."""
        ...

    async def decide(
        self, id: str, decision: Decision, message: str | None, *, remember: bool
    ) -> None:
        """Decide on a call of a tool that waits for an approval."""
        ...

    async def close(self) -> None: ...
