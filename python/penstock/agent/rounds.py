"""Runs the rounds of a request with server tools: model call, tool calls, next model call."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

import msgspec

from penstock.agent.calls import CallRunner
from penstock.agent.output_files import OutputFiles
from penstock.agent.protocols import AgentObserver
from penstock.agent.sessions import Answer
from penstock.agent.toolbox import Toolbox
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    FileProduced,
    GenerateRequest,
    Part,
    PartEnded,
    PartStarted,
    PythonActivity,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    ToolActivity,
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

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of the whole run: one RunStarted, the parts and calls of all rounds, one
        TurnEnded, one RunEnded or RunFailed."""
        first = current = self._toolbox.first_round(request)
        number = 0
        silent = False
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
            if self._says_nothing(model_call, finish) and not silent:
                log.info("the model did not answer after its calls; it is asked without tools")
                silent = True
                current = self._without_tools(first, self._all_parts())
                continue
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
                if not model_call.wrote:
                    for event in model_call.empty_text:
                        yield event
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
        """Return the request of the next round. If the last round made the same calls as the one
        before and got the same results, the next request is without tools and without the
        repetition: small models repeat a call forever, and answer once they have no functions.
        """
        parts = self._all_parts()
        latest = max(part.round for part in parts if isinstance(part, ToolRun))
        if _calls_of(parts, latest) != _calls_of(parts, latest - 1):
            return self._toolbox.next_round(first, answer_messages(parts), self._left_tokens(first))
        log.info("the model repeats its calls; it must answer without tools")
        new = [p for p in parts if not (isinstance(p, ToolRun) and p.round == latest)]
        return self._without_tools(first, new)

    def _without_tools(
        self, first: GenerateRequest, parts: list[Part | ToolRun]
    ) -> GenerateRequest:
        """Return a request for the answer after `parts` that offers no functions."""
        left = self._left_tokens(first)
        request = self._toolbox.next_round(first, answer_messages(parts), left)
        return msgspec.structs.replace(request, tool_policy=ToolPolicy("none"))

    def _says_nothing(self, model_call: _ModelCall, finish: Finish | None) -> bool:
        """Whether the model ended its turn without a text after it has seen results."""
        ran = any(isinstance(part, ToolRun) for part in self._parts.values())
        return ran and finish == "stop" and not model_call.has_text

    def _all_parts(self) -> list[Part | ToolRun]:
        return [self._parts[index] for index in sorted(self._parts)]

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
    Parts are numbered from `next_part`. A text is passed on from its first character on.

    - `calls`: the finished calls of server tools.
    - `client_calls`: number of calls of the client's functions.
    - `broken`: whether the model left a call of a server tool unfinished.
    - `has_text`: whether the model wrote text, beside reasoning and calls.
    - `wrote`: whether parts were passed on.
    - `empty_text`: the events of a text without characters, for an answer that has no other part.
    - `ended`: the end of the model call.
    """

    def __init__(self, toolbox: Toolbox, next_part: int) -> None:
        self._toolbox = toolbox
        self._hidden: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._held: PartStarted | None = None
        self.next_part = next_part
        self.calls: list[ToolCall] = []
        self.client_calls = 0
        self.broken = False
        self.wrote = False
        self.has_text = False
        self.empty_text: list[Event] = []
        self.ended = TurnEnded(0, "stop", Usage())

    async def run(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        async with aclosing(events):
            async for event in events:
                match event:
                    case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                        if event.part in self._hidden:
                            continue
                        if isinstance(event, TextDelta):
                            if event.text == "" and not event.logprobs:
                                continue
                            self.has_text |= event.text != ""
                        if self._held is not None:
                            yield self._start(self._held)
                        yield self._renumbered(event)
                    case PartStarted():
                        if event.kind == "tool_call" and event.name in self._toolbox.tools:
                            self._hidden.add(event.part)
                        elif event.kind == "text":
                            self._held = event
                        else:
                            yield self._start(event)
                    case PartEnded():
                        if event.part in self._hidden:
                            self._collect(cast(ToolCall, event.value))
                        elif self._held is not None:
                            self._drop(event)
                        else:
                            number = self._numbers[event.part]
                            yield msgspec.structs.replace(event, part=number)
                    case TurnEnded():
                        self.ended = event
                    case RunEnded():
                        pass
                    case _:
                        yield event

    def _start(self, event: PartStarted) -> PartStarted:
        self._held = None
        self.wrote = True
        self._numbers[event.part] = number = self.next_part
        self.next_part += 1
        self.client_calls += event.kind == "tool_call"
        return msgspec.structs.replace(event, part=number)

    def _drop(self, event: PartEnded) -> None:
        assert self._held is not None
        number = self.next_part
        self.empty_text = [
            msgspec.structs.replace(self._held, part=number),
            msgspec.structs.replace(event, part=number),
        ]
        self._held = None

    def _collect(self, call: ToolCall) -> None:
        if call.whole:
            self.calls.append(call)
        else:
            self.broken = True

    def _renumbered(self, event: _Delta) -> _Delta:
        number = self._numbers[event.part]
        return event if number == event.part else msgspec.structs.replace(event, part=number)


def _calls_of(parts: list[Part | ToolRun], round: int) -> list[tuple[str, ToolActivity]]:
    """Return the calls of a round with their results, without times and declared outputs."""
    runs = [part for part in parts if isinstance(part, ToolRun) and part.round == round]
    return [(run.call.name, _timeless(run.activity)) for run in runs]


def _timeless(activity: ToolActivity) -> ToolActivity:
    if isinstance(activity, PythonActivity):
        return msgspec.structs.replace(activity, execution_time_ms=0)
    return activity


def _sum(one: Usage, other: Usage) -> Usage:
    names = Usage.__struct_fields__
    return Usage(**{name: getattr(one, name) + getattr(other, name) for name in names})
