"""Turns the text, reasoning and tool calls of one choice into the events of message parts."""

from __future__ import annotations

import msgspec

from penstock.base.ids import new_id
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    TurnEnded,
)
from penstock.dialog.events import PartKind


class Parts:
    """Collects the events of one choice until `take` returns them.

    A part starts at its first text and ends when another kind of part follows. Adjacent deltas of a
    part are merged into one delta per `take`.

    - `num_calls`: number of tool calls that have started.
    - `num_whole_calls`: number of tool calls that ended with a JSON object as arguments.
    """

    def __init__(self, choice: int) -> None:
        self._choice = choice
        self._events: list[Event] = []
        self._part = -1
        self._kind: PartKind | None = None
        self._texts: list[str] = []
        self._call = ("", "")
        self.num_calls = 0
        self.num_whole_calls = 0

    def take(self) -> list[Event]:
        """Return the events since the last `take`."""
        events, self._events = self._events, []
        return events

    @property
    def in_text(self) -> bool:
        """Whether a text part is open."""
        return self._kind == "text"

    def more_text(self, text: str) -> TextDelta:
        """Add text to the open text part and return its delta. All earlier events must have been
        taken."""
        self._texts.append(text)
        return TextDelta(self._choice, self._part, text)

    def text(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> None:
        if self._kind != "text":
            self._open("text")
        if not text and not logprobs:
            return
        self._texts.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, TextDelta):
            self._events.pop()
            text, logprobs = last.text + text, last.logprobs + logprobs
        self._events.append(TextDelta(self._choice, self._part, text, logprobs))

    def reasoning(self, text: str) -> None:
        if self._kind != "reasoning":
            self._open("reasoning")
        self._texts.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, ReasoningDelta):
            self._events.pop()
            text = last.text + text
        self._events.append(ReasoningDelta(self._choice, self._part, text))

    def call(self, name: str, call_id: str | None) -> None:
        """Start a tool call. A new id is made if `call_id` is None."""
        self._call = (call_id or new_id("call_"), name)
        self.num_calls += 1
        self._open("tool_call", *self._call)

    def arguments(self, text: str) -> None:
        assert self._kind == "tool_call"
        self._texts.append(text)
        last = self._events[-1] if self._events else None
        if isinstance(last, ArgumentsDelta):
            self._events.pop()
            text = last.text + text
        self._events.append(ArgumentsDelta(self._choice, self._part, text))

    def end_call(self) -> None:
        """End a tool call. The call is whole if its arguments are a JSON object."""
        assert self._kind == "tool_call"
        arguments = "".join(self._texts)
        whole = _is_object(arguments)
        self.num_whole_calls += whole
        self._end(ToolCall(*self._call, arguments, whole))

    def break_call_off(self) -> None:
        """End a tool call that the model did not finish."""
        assert self._kind == "tool_call"
        self._end(ToolCall(*self._call, "".join(self._texts), whole=False))

    def end_all(self, event: TurnEnded) -> None:
        """End the open part and add `event`. A choice without parts gets an empty text part."""
        if self._part < 0:
            self.text("")
        self._end_text()
        self._events.append(event)

    def _open(self, kind: PartKind, call_id: str | None = None, name: str | None = None) -> None:
        self._end_text()
        self._part += 1
        self._kind = kind
        self._texts = []
        self._events.append(PartStarted(self._choice, self._part, kind, call_id, name))

    def _end_text(self) -> None:
        """End the open text or reasoning part, if any."""
        if self._kind is None:
            return
        assert self._kind != "tool_call"
        text = "".join(self._texts)
        self._end(Text(text) if self._kind == "text" else Reasoning(text))

    def _end(self, value: Text | Reasoning | ToolCall) -> None:
        self._events.append(PartEnded(self._choice, self._part, value))
        self._kind = None


def _is_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
