"""Output of the answer parser: text, reasoning and tool calls, in the order of the answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedText:
    """Text of the answer: the characters `at` to `at + len(text)` of the stream, unchanged."""

    text: str
    at: int


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a tool call.

    - `name`: the function's name.
    - `call_id`: the id that the model wrote for the call, or None.
    """

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """A piece of the JSON text of a call's arguments. The joined pieces are the whole JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a tool call. `whole`: False if the call broke off."""

    whole: bool = True


ParserOutput = ParsedText | ParsedReasoning | CallStart | ParsedArguments | CallEnd
