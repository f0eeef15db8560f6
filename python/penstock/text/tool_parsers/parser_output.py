"""What a channel parser says of a text: pieces in the order in which they were written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParsedText:
    """Words for the reader: characters `at` to `at + len(text)` of the stream, verbatim."""

    text: str
    at: int


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """`call_id`: the id that the model itself gave the call, None where it gives none."""

    name: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """The pieces of a call concatenate to the JSON text of its arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """`whole` False: the call broke off before its end."""

    whole: bool = True


ParserOutput = ParsedText | ParsedReasoning | CallStart | ParsedArguments | CallEnd
