"""The parts of one choice as events: each starts once, streams its deltas and ends once."""

from __future__ import annotations

from typing import cast

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
from penstock.dialog.outlet import DELTAS, Delta


class Parts:
    """Opens a part when its first words come and ends it when those of another kind do.

    What `take` returns at once is one delta for each stretch of a part.
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
        """The events since the last time."""
        events, self._events = self._events, []
        return events

    def take_deltas(self) -> list[Delta] | None:
        """The same, if they are deltas alone; else None, and they are left."""
        for event in self._events:
            if type(event) not in DELTAS:
                return None
        return cast("list[Delta]", self.take())

    @property
    def only_text(self) -> bool:
        """Whether a text is open and all events were taken."""
        return self._kind == "text" and not self._events

    @property
    def part(self) -> int:
        """The number of the part that is open, or of the last one."""
        return self._part

    def more_text(self, text: str) -> TextDelta:
        """The delta of `text`, while there is `only_text`."""
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
        """A call begins; without an id of its own it gets one."""
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
        """The call is over. It is whole if its arguments are a JSON object."""
        assert self._kind == "tool_call"
        arguments = "".join(self._texts)
        whole = _is_object(arguments)
        self.num_whole_calls += whole
        self._end(ToolCall(*self._call, arguments, whole))

    def break_call_off(self) -> None:
        """The call is over before its end."""
        assert self._kind == "tool_call"
        self._end(ToolCall(*self._call, "".join(self._texts), whole=False))

    def end_all(self, event: TurnEnded) -> None:
        """The choice is over; one without any part is an empty text."""
        if self._part < 0:
            self.text("")
        self._end_words()
        self._events.append(event)

    def _open(self, kind: PartKind, call_id: str | None = None, name: str | None = None) -> None:
        self._end_words()
        self._part += 1
        self._kind = kind
        self._texts = []
        self._events.append(PartStarted(self._choice, self._part, kind, call_id, name))

    def _end_words(self) -> None:
        """The text or the reasoning that is open is over."""
        if self._kind is None:
            return
        assert self._kind != "tool_call"
        words = "".join(self._texts)
        self._end(Text(words) if self._kind == "text" else Reasoning(words))

    def _end(self, value: Text | Reasoning | ToolCall) -> None:
        self._events.append(PartEnded(self._choice, self._part, value))
        self._kind = None


def _is_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
