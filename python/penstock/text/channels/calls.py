"""Between a body of calls and the parser: what the forms of calls read from and report to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from penstock.dialog import FunctionTool
from penstock.text.channels.pieces import ArgumentsPiece, CallEnd, CallStart, Piece
from penstock.text.channels.reader import Malformed, Reader, Reading

MAX_NAME_CHARS: Final = 160
"""A name, with what a family writes around it; longer text is none."""


class CallBody(Protocol):
    """One form in which calls are written."""

    def read(self, io: CallReader) -> Reading[None]:
        """Read one call or more. Raises Malformed; calls already ended stay what they are."""
        ...

    def marks(self) -> tuple[str, ...]:
        """Everything that is written literally: control tokens among it must not be hidden."""
        ...


class CallReader:
    """Reads calls and reports them. `reader.hold` is kept where nothing unreported lies before,
    so that what is not part of a call can be given back as text.
    """

    def __init__(
        self, reader: Reader, tools: Sequence[FunctionTool], report: Callable[[Piece], None]
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
            self._report(ArgumentsPiece(text))

    def end(self) -> None:
        if self._open:
            self._open = False
            self.reader.hold()
            self._report(CallEnd())

    def abandon(self) -> None:
        """A call broke off: it ends as it is, and reading goes on behind what was reported."""
        if self._open:
            self._open = False
            self._report(CallEnd())
        self.reader.rewind()
