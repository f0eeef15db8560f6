"""The interface between the answer parser and the call formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.dialog import FunctionTool
from penstock.grammar.json_schema.closed_objects import without_extra_keys
from penstock.grammar.lark import LarkGrammar
from penstock.text.tool_parsers.parser_output import (
    CallEnd,
    CallStart,
    ParsedArguments,
    ParserOutput,
)
from penstock.text.tool_parsers.stream_reader import Malformed, Reader, StreamRead

MAX_NAME_CHARS: Final = 160
"""Maximum characters of a function name, including the text that a family writes around it."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Text that announces the arguments of a call.

    - `mark`: a part of that text which no token contains together with the start of the arguments.
    - `pattern`: a regular expression for the text directly before the arguments.
    """

    mark: str
    pattern: str


class CallFormat(Protocol):
    """A format in which models write tool calls.

    - `wrapper`: the texts before the first and after the last call of a section.
    - `call_separator`: the text between two calls.
    """

    @property
    def wrapper(self) -> tuple[str, str]: ...

    @property
    def call_separator(self) -> str: ...

    def read(self, io: CallReader) -> StreamRead[None]:
        """Read one or more calls. Raises Malformed if a call breaks off; calls that have ended
        before stay valid."""
        ...

    def marks(self) -> tuple[str, ...]:
        """Return all literal texts of the format. If one is a control token, the detokenizer must
        show it to the parser."""
        ...

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        """Return the text of a call as the model would write it. `index`: number of earlier
        calls."""
        ...

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        """Return a grammar expression for `prefix` and a call of a function with arguments that its
        schema allows."""
        ...

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        """Return the texts that come directly before the JSON arguments of a function in any
        section. Empty if only the opening of a section announces a call."""
        ...

    @property
    def arguments_first(self) -> str:
        """A regular expression for the text between the opening of a section and the arguments, in
        calls whose arguments come before the name; "" if the format has no such calls."""
        ...


ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def arguments_schema(tool: FunctionTool) -> dict[str, Any]:
    """Return the JSON schema of a function's arguments. A function without `parameters` takes no
    arguments; an empty schema allows any object."""
    if tool.parameters is None:
        return without_extra_keys(NO_ARGUMENTS)
    return without_extra_keys(tool.parameters) or ANY_OBJECT


class CallReader:
    """Emits the tool calls that a format reads.

    Each emitted part moves the reader's held position forward, so that text after it can still be
    returned as text if the call breaks off.

    `count`: number of calls that have started.
    """

    def __init__(
        self, reader: Reader, tools: Sequence[FunctionTool], emit: Callable[[ParserOutput], None]
    ) -> None:
        self.reader = reader
        self._tools: Mapping[str, FunctionTool] = {tool.name: tool for tool in tools}
        self._emit = emit
        self._open = False
        self.count = 0

    def knows(self, name: str) -> bool:
        return name in self._tools

    def parameters(self, name: str) -> dict[str, Any]:
        """Return the JSON schema of a function's arguments, {} if the function has none."""
        return self._tools[name].parameters or {}

    def begin(self, name: str, call_id: str | None = None) -> None:
        """Start a call. Raises Malformed if the request does not offer the function."""
        if name not in self._tools:
            raise Malformed(f"no function {name!r}")
        assert not self._open
        self._open = True
        self.count += 1
        self.reader.hold()
        self._emit(CallStart(name, call_id))

    def arguments(self, text: str) -> None:
        """Emit more JSON text of the arguments. All text read so far becomes part of the call."""
        self.reader.hold()
        if text:
            self._emit(ParsedArguments(text))

    def end(self) -> None:
        if self._open:
            self._open = False
            self.reader.hold()
            self._emit(CallEnd())

    def abandon(self) -> None:
        """End the open call, if any, as broken off. Reading continues after the last emitted
        part."""
        if self._open:
            self._open = False
            self._emit(CallEnd(whole=False))
        self.reader.rewind()


def read_calls(
    io: CallReader, begin: str, read_one: Callable[[CallReader], StreamRead[None]]
) -> StreamRead[None]:
    """Read calls that each start with `begin`, or exactly one call if `begin` is empty. Raises
    Malformed if no call follows."""
    found = 0
    while True:
        if begin and not (yield from io.reader.literal(begin)):
            break
        yield from read_one(io)
        found += 1
        if not begin:
            break
        yield from io.reader.spaces()
    if not found:
        raise Malformed("no call")
