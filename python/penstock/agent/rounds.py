"""Runs the rounds of a request with server tools: model call, tool calls, next model call."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, cast

import msgspec

from penstock.agent.calls import CallRunner
from penstock.agent.output_files import OutputFiles
from penstock.agent.protocols import AgentObserver
from penstock.agent.toolbox import Toolbox
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    FileProduced,
    GenerateRequest,
    Part,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    ToolCall,
    ToolCompleted,
    ToolPolicy,
    ToolRun,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import Finish
from penstock.dialog.transcript import answer_messages

log = logging.getLogger(__name__)

MAX_ROUNDS: Final = 256
"""Maximum rounds of tool calls if neither the server nor the request sets a limit."""
MAX_SAME_ROUNDS: Final = 3
"""If this many consecutive rounds make the same calls and get the same results, the model must
answer without tools."""
EXECUTION_TIME: Final = re.compile(r'"execution_time_ms":\d+,?')
"""Part of a result that differs between equal calls."""

Answer = Callable[[GenerateRequest], AsyncGenerator[Event, None]]
_Delta = TextDelta | ReasoningDelta | ArgumentsDelta


class ToolRounds:
    """Runs all rounds of one request.

    - `answer`: runs one model call.
    - `max_rounds`: maximum rounds of tool calls.
    - `session`: id of the session for RunStarted, None to show none.
    """

    def __init__(
        self,
        answer: Answer,
        toolbox: Toolbox,
        calls: CallRunner,
        outputs: OutputFiles,
        observer: AgentObserver,
        *,
        max_rounds: int,
        session: str | None,
    ) -> None:
        self._answer = answer
        self._toolbox = toolbox
        self._calls = calls
        self._outputs = outputs
        self._observer = observer
        self._max_rounds = max_rounds
        self._session = session
        self._parts: dict[int, Part | ToolRun] = {}
        self._num_parts = 0
        self._usage = Usage()
        self._repeats = _Repeats()

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of the whole run: one RunStarted, the parts and calls of all rounds, one
        TurnEnded, one RunEnded or RunFailed."""
        first = current = self._toolbox.first_round(request)
        number = 0
        while True:
            model_call = _ModelCall(self._toolbox, self._num_parts)
            async with aclosing(model_call.run(self._answer(current))) as events:
                async for event in events:
                    match event:
                        case RunStarted():
                            if number == 0:
                                yield msgspec.structs.replace(event, session=self._session)
                        case RunFailed():
                            yield event
                            return
                        case _:
                            if isinstance(event, PartEnded):
                                self._parts[event.part] = event.value
                            yield event
            self._num_parts = model_call.next_part
            ended = model_call.ended
            self._usage = _sum(self._usage, ended.usage)
            finish = self._finish(model_call, number)
            if finish is None:
                calls = self._calls.run(request, number, model_call.calls, self._num_parts)
                async with aclosing(calls) as events:
                    async for event in events:
                        if isinstance(event, ToolCompleted):
                            self._parts[event.part] = event.run
                        yield event
                self._num_parts += len(model_call.calls)
                self._observer.round_ended()
                if model_call.client_calls:
                    finish = "tool_calls"
                elif self._left_tokens(first) == 0:
                    finish = "length"
            if finish is not None:
                async for event in self._end(finish, ended, number):
                    yield event
                return
            number += 1
            current = self._next(first)

    def _finish(self, model_call: _ModelCall, number: int) -> Finish | None:
        """Return why the run ends after a model call, or None if its calls are to be run."""
        ended = model_call.ended
        if not model_call.calls or ended.finish == "length" or ended.stop_sequence is not None:
            if model_call.broken:
                log.info("the model did not finish a call of a server tool")
            return ended.finish
        return "rounds" if number >= self._max_rounds else None

    def _next(self, first: GenerateRequest) -> GenerateRequest:
        parts = [self._parts[index] for index in sorted(self._parts)]
        repeats = self._repeats.too_many(parts)
        if repeats:
            parts = self._repeats.without_repetitions(parts)
        messages = answer_messages(parts)
        request = self._toolbox.next_round(first, messages, self._left_tokens(first))
        if repeats:
            log.info("the model repeats its calls; it must answer without tools")
            return msgspec.structs.replace(request, tool_policy=ToolPolicy("none"))
        return request

    def _left_tokens(self, first: GenerateRequest) -> int | None:
        limit = first.limits.max_tokens
        return None if limit is None else max(0, limit - self._usage.completion_tokens)

    async def _end(
        self, finish: Finish, ended: TurnEnded, number: int
    ) -> AsyncGenerator[Event, None]:
        for file in await self._outputs.missing(number):
            yield FileProduced(0, file)
        yield TurnEnded(0, finish, self._usage, ended.stop_sequence)
        cut = finish in ("length", "rounds")
        yield RunEnded("incomplete" if cut else "completed", self._usage)


class _ModelCall:
    """Passes on the events of one model call, except calls of server tools, which it collects.
    Parts are numbered from `next_part`.

    - `calls`: the finished calls of server tools.
    - `client_calls`: number of calls of the client's functions.
    - `broken`: whether the model left a call of a server tool unfinished.
    - `ended`: the end of the model call.
    """

    def __init__(self, toolbox: Toolbox, next_part: int) -> None:
        self._toolbox = toolbox
        self._hidden: set[int] = set()
        self._numbers: dict[int, int] = {}
        self.next_part = next_part
        self.calls: list[ToolCall] = []
        self.client_calls = 0
        self.broken = False
        self.ended = TurnEnded(0, "stop", Usage())

    async def run(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        async with aclosing(events):
            async for event in events:
                match event:
                    case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                        if event.part not in self._hidden:
                            yield self._renumbered(event)
                    case PartStarted():
                        if event.kind == "tool_call" and event.name in self._toolbox.tools:
                            self._hidden.add(event.part)
                            continue
                        self._numbers[event.part] = self.next_part
                        self.next_part += 1
                        self.client_calls += event.kind == "tool_call"
                        number = self._numbers[event.part]
                        yield msgspec.structs.replace(event, part=number)
                    case PartEnded():
                        if event.part in self._hidden:
                            self._collect(cast(ToolCall, event.value))
                        else:
                            number = self._numbers[event.part]
                            yield msgspec.structs.replace(event, part=number)
                    case TurnEnded():
                        self.ended = event
                    case RunEnded():
                        pass
                    case _:
                        yield event

    def _collect(self, call: ToolCall) -> None:
        if call.whole:
            self.calls.append(call)
        else:
            self.broken = True

    def _renumbered(self, event: _Delta) -> _Delta:
        number = self._numbers[event.part]
        return event if number == event.part else msgspec.structs.replace(event, part=number)


class _Repeats:
    """Counts consecutive rounds with the same calls and results."""

    def __init__(self) -> None:
        self._last: tuple[tuple[str, str, str], ...] = ()
        self._first_round = 0
        self._count = 0

    def too_many(self, parts: list[Part | ToolRun]) -> bool:
        """Return whether the last rounds were the same too often."""
        runs = [part for part in parts if isinstance(part, ToolRun)]
        last_round = runs[-1].round
        latest = tuple(
            (run.call.name, run.call.arguments, EXECUTION_TIME.sub("", run.result.text))
            for run in runs
            if run.round == last_round
        )
        if latest != self._last:
            self._last, self._first_round, self._count = latest, last_round, 0
        self._count += 1
        return self._count >= MAX_SAME_ROUNDS

    def without_repetitions(self, parts: list[Part | ToolRun]) -> list[Part | ToolRun]:
        """Return the parts up to the first of the same rounds. Small models that see their own
        repetitions go on with them, and without tools answer nothing."""
        own = [
            index
            for index, part in enumerate(parts)
            if isinstance(part, ToolRun) and part.round == self._first_round
        ]
        return parts[: own[-1] + 1]


def _sum(one: Usage, other: Usage) -> Usage:
    names = Usage.__struct_fields__
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in names})
