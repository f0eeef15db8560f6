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
"""Longest function name, including the marks that a family writes around it."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """Text that announces the arguments of a call.

    `pattern`: a regular expression for the text right before the arguments. `mark`: a part of it
    that no token contains together with the start of the arguments.
    """

    mark: str
    pattern: str


class CallFormat(Protocol):
    """One format in which calls are written.

    `wrapper`: the texts before the first and after the last call of a section. `call_separator`:
    the text between two calls.
    """

    @property
    def wrapper(self) -> tuple[str, str]: ...

    @property
    def call_separator(self) -> str: ...

    def read(self, io: CallReader) -> StreamRead[None]:
        """Read one or more calls. Raises Malformed; calls that have ended stay valid."""
        ...

    def marks(self) -> tuple[str, ...]:
        """Return all literal texts of the format. Control tokens among them must stay visible to
        the parser."""
        ...

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        """Return the text of a call as the model would write it. `index`: number of calls before
        it."""
        ...

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, prefix: str) -> str:
        """Return an expression for all calls of a function that its schema allows, with `prefix`
        before them."""
        ...

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        """Return the texts that come right before JSON arguments in any section. Empty if only a
        section announces a call."""
        ...

    @property
    def arguments_first(self) -> str:
        """A regular expression for the text between the opening of a section and arguments that
        come before their function's name; "" if the format has no such order."""
        ...


ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def arguments_schema(tool: FunctionTool) -> dict[str, Any]:
    """Return the schema of a call's arguments. A function without `parameters` takes none; an empty
    schema allows any object."""
    if tool.parameters is None:
        return without_extra_keys(NO_ARGUMENTS)
    return without_extra_keys(tool.parameters) or ANY_OBJECT


class CallReader:
    """Reads calls for a format and emits them.

    The reader's held position is moved past everything that was emitted, so that the rest can be
    returned as text if it is not a call.
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
        """Return the JSON schema of a function's arguments, {} if it has none."""
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
        """Emit more JSON text. All text read so far is part of the call."""
        self.reader.hold()
        if text:
            self._emit(ParsedArguments(text))

    def end(self) -> None:
        if self._open:
            self._open = False
            self.reader.hold()
            self._emit(CallEnd())

    def abandon(self) -> None:
        """End a call that broke off. Reading continues after the last emitted part."""
        if self._open:
            self._open = False
            self._emit(CallEnd(whole=False))
        self.reader.rewind()


def read_calls(
    io: CallReader, begin: str, read_one: Callable[[CallReader], StreamRead[None]]
) -> StreamRead[None]:
    """Read calls that each follow `begin`; exactly one if `begin` is empty. Raises Malformed if
    there is none."""
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
