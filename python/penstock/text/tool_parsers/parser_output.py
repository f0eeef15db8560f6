"""Output of a parser: parts of an answer, in the order in which they were written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedText:
    """Text of the answer: characters `at` to `at + len(text)` of the stream, verbatim."""

    text: str
    at: int


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    """Text of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call. `call_id` is the id that the model gave the call, or None."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """A part of a call's arguments; the parts concatenate to their JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call. `whole` False: the call broke off."""

    whole: bool = True


ParserOutput = ParsedText | ParsedReasoning | CallStart | ParsedArguments | CallEnd
