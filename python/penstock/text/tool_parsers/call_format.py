"""Between a body of calls and the parser: what the forms of calls read from and report to."""

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
from penstock.text.tool_parsers.stream_reader import Malformed, Reader, Reading

MAX_NAME_CHARS: Final = 160
"""A name, with what a family writes around it; longer text is none."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """`pattern`: a regular expression for what comes right before arguments; `mark`: a text in it,
    which no token holds together with the beginning of the arguments."""

    mark: str
    pattern: str


class CallFormat(Protocol):
    """One form in which calls are written.

    `around`: what stands before the first and after the last call of a section, `between`: what
    between two.
    """

    @property
    def around(self) -> tuple[str, str]: ...

    @property
    def between(self) -> str: ...

    def read(self, io: CallReader) -> Reading[None]:
        """Read one call or more. Raises Malformed; calls already ended stay what they are."""
        ...

    def marks(self) -> tuple[str, ...]:
        """Everything that is written literally: control tokens among it must not be hidden."""
        ...

    def write(self, name: str, arguments: dict[str, Any], index: int) -> str:
        """A call as the model would write it. `index`: how many calls came before."""
        ...

    def rule(self, grammar: LarkGrammar, tool: FunctionTool, lead: str) -> str:
        """An expression for all calls of a function that its schema allows, `lead` before them."""
        ...

    def triggers(self, tool: FunctionTool) -> tuple[Trigger, ...]:
        """The texts that come right before the arguments of a call, however the call is wrapped, if
        they are JSON; none if only the section tells that a call begins."""
        ...

    @property
    def early(self) -> str:
        """A regular expression for what comes between the opening of a section and arguments that
        are written before the name of their function; "" if there is no such form."""
        ...


ANY_OBJECT: Final[dict[str, Any]] = {"type": "object"}


NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def arguments_schema(tool: FunctionTool) -> dict[str, Any]:
    """What the arguments of a call must be. A function without `parameters` takes none; one whose
    schema says nothing takes anything."""
    if tool.parameters is None:
        return without_extra_keys(NO_ARGUMENTS)
    return without_extra_keys(tool.parameters) or ANY_OBJECT


class CallReader:
    """Reads calls and reports them. `reader.hold` is kept where nothing unreported lies before,
    so that what is not part of a call can be given back as text.
    """

    def __init__(
        self, reader: Reader, tools: Sequence[FunctionTool], report: Callable[[ParserOutput], None]
    ) -> None:
        self.reader = reader
        self._tools: Mapping[str, FunctionTool] = {tool.name: tool for tool in tools}
        self._report = report
        self._open = False
        self.count = 0

    def knows(self, name: str) -> bool:
        return name in self._tools

    def parameters(self, name: str) -> dict[str, Any]:
        """The JSON Schema of a function's arguments; empty where it has none."""
        return self._tools[name].parameters or {}

    def begin(self, name: str, call_id: str | None = None) -> None:
        """Raises Malformed for a function that the request does not offer."""
        if name not in self._tools:
            raise Malformed(f"no function {name!r}")
        assert not self._open
        self._open = True
        self.count += 1
        self.reader.hold()
        self._report(CallStart(name, call_id))

    def arguments(self, text: str) -> None:
        """Further JSON text. All that was read so far is part of the call."""
        self.reader.hold()
        if text:
            self._report(ParsedArguments(text))

    def end(self) -> None:
        if self._open:
            self._open = False
            self.reader.hold()
            self._report(CallEnd())

    def abandon(self) -> None:
        """A call broke off: it ends as it is, and reading goes on behind what was reported."""
        if self._open:
            self._open = False
            self._report(CallEnd(whole=False))
        self.reader.rewind()


def read_calls(
    io: CallReader, begin: str, read_one: Callable[[CallReader], Reading[None]]
) -> Reading[None]:
    """Read calls that each follow `begin`, one or more; where that is empty there is one."""
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
