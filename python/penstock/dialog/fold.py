"""Combines the events of a run into one answer, for clients that do not stream."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.base.errors import ServiceError
from penstock.dialog.events import (
    Event,
    FileProduced,
    Finish,
    PartEnded,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    TokenLogprob,
    ToolCompleted,
    TurnEnded,
    Usage,
)
from penstock.dialog.message import Part
from penstock.dialog.server_tools import ProducedFile, ToolRun


class Choice(msgspec.Struct):
    """One finished choice.

    - `parts`: its parts and the calls of server tools, in the order in which they started.
    - `logprobs`: logprobs of the tokens of its text parts.
    - `files`: the files that server tools made, and placeholders.
    """

    index: int
    parts: list[Part | ToolRun] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    finish: Finish = "stop"
    stop_sequence: str | None = None
    files: list[ProducedFile] = msgspec.field(default_factory=list)

    @property
    def tool_runs(self) -> list[ToolRun]:
        """The calls of server tools, in the order in which they started."""
        return [part for part in self.parts if isinstance(part, ToolRun)]


class Answer(msgspec.Struct):
    """A finished run. `choices`: ordered by index. `session`: see RunStarted."""

    model: str = ""
    created: int = 0
    choices: list[Choice] = msgspec.field(default_factory=list)
    usage: Usage = Usage()
    status: str = "completed"
    adapter_revision: str | None = None
    fingerprint: str = ""
    session: str | None = None


class FailedRun(ServiceError):
    """A RunFailed event as an exception, with the event's status and kind."""

    def __init__(self, event: RunFailed) -> None:
        super().__init__(
            event.message,
            field=event.field,
            code=event.code,
            retry_after_s=event.retry_after_s,
        )
        self.status = event.status
        self.kind = event.kind


class Fold:
    """Builds an Answer from events. `add` raises FailedRun for RunFailed."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._choices: dict[int, Choice] = {}
        self._parts: dict[int, dict[int, Part | ToolRun]] = {}

    def add(self, event: Event) -> None:
        match event:
            case RunStarted():
                self.answer.model, self.answer.created = event.model, event.created
                self.answer.adapter_revision = event.adapter_revision
                self.answer.fingerprint = event.fingerprint
                self.answer.session = event.session
            case TextDelta():
                self._choice(event.choice).logprobs.extend(event.logprobs)
            case PartEnded():
                self._add_part(event.choice, event.part, event.value)
            case ToolCompleted():
                self._add_part(event.choice, event.part, event.run)
            case FileProduced():
                self._choice(event.choice).files.append(event.file)
            case TurnEnded():
                choice = self._choice(event.choice)
                choice.finish, choice.stop_sequence = event.finish, event.stop_sequence
            case RunEnded():
                self.answer.usage, self.answer.status = event.usage, event.status
                self.answer.choices = [self._finished(i) for i in sorted(self._choices)]
            case RunFailed():
                raise FailedRun(event)
            case _:
                pass

    def _choice(self, index: int) -> Choice:
        return self._choices.setdefault(index, Choice(index))

    def _add_part(self, choice: int, index: int, part: Part | ToolRun) -> None:
        self._choice(choice)
        self._parts.setdefault(choice, {})[index] = part

    def _finished(self, index: int) -> Choice:
        choice, parts = self._choices[index], self._parts.get(index, {})
        choice.parts = [parts[number] for number in sorted(parts)]
        return choice


def fold(events: Iterable[Event]) -> Answer:
    """Return the answer that the events of a run describe. Raises FailedRun for RunFailed."""
    state = Fold()
    for event in events:
        state.add(event)
    return state.answer
