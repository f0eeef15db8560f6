"""Splits one answer into text, reasoning and tool calls while the model writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.dialog import FunctionTool
from penstock.text.tool_parsers.call_format import CallReader
from penstock.text.tool_parsers.harmony import HarmonyParser
from penstock.text.tool_parsers.output_builder import OutputBuilder
from penstock.text.tool_parsers.parser_output import ParserOutput
from penstock.text.tool_parsers.stream_reader import (
    Malformed,
    Reader,
    StreamRead,
    held_back,
    pass_text,
)
from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, Section, ToolSyntax


class AnswerParser:
    """Splits the output of one choice into text, reasoning and tool calls.

    The joined output does not depend on how the text was split into pieces. A call starts once its
    name is one of `tools` and its arguments follow. Text that only looks like a call, and the rest
    of a call that breaks off, are returned as text. Without `tools`, calls are text.

    `thinking`: the prompt has opened the reasoning.
    """

    def __init__(
        self, syntax: AnswerSyntax, tools: Sequence[FunctionTool] = (), *, thinking: bool = False
    ) -> None:
        self._reader = Reader()
        self._syntax = syntax
        calls = syntax.calls
        self._output = OutputBuilder(keeps_spaces=bool(tools) and not isinstance(calls, Harmony))
        self._io = CallReader(self._reader, tools, self._output.add)
        self._run = self._harmony() if isinstance(calls, Harmony) else self._answer(thinking)
        self._calls = calls if tools and isinstance(calls, ToolSyntax) else None
        self._answer_close = ""  # the tag that ends the answer, once the answer's tag has opened
        if thinking:
            self._output.begin_reasoning()

    @property
    def reasoning(self) -> bool:
        """Whether the parser is inside the reasoning."""
        return self._output.reasoning

    @property
    def num_calls(self) -> int:
        """Number of calls that have started."""
        return self._io.count

    def push(self, text: str) -> list[ParserOutput]:
        """Read more text and return the output that is now certain."""
        self._reader.feed(text)
        next(self._run)
        return self._output.take()

    def finish(self) -> list[ParserOutput]:
        """End the text and return the remaining output."""
        self._reader.end()
        for _ in self._run:
            raise AssertionError("a parser waits for text after the end")
        self._output.finish(self._reader.position)
        return self._output.take()

    def _harmony(self) -> StreamRead[None]:
        yield from HarmonyParser(self._io, self._output).run()

    def _answer(self, thinking: bool) -> StreamRead[None]:
        if self._syntax.reasoning is not None:
            yield from self._reasoning(thinking)
            yield from self._answer_tag()
        if self._calls is not None and self._calls.bare:
            yield from self._bare(self._calls)
        yield from self._text()

    def _reasoning(self, opened: bool) -> StreamRead[None]:
        assert self._syntax.reasoning is not None
        reader, tags = self._reader, self._syntax.reasoning
        if not opened:
            reader.hold()
            yield from reader.spaces()
            opened = bool((yield from reader.literal(tags.open)))
            if not opened:
                reader.rewind()
                reader.release()
                return
            reader.release()
            self._output.begin_reasoning()
        try:
            yield from pass_text(reader, (tags.close,), self._output.add_reasoning)
        except Malformed:  # the answer was cut off within its reasoning
            self._output.add_reasoning(reader.advance(len(reader.window())))
            return
        self._output.end_reasoning()

    def _answer_tag(self) -> StreamRead[None]:
        """Drop the tag that opens the answer, if the model writes it."""
        assert self._syntax.reasoning is not None
        reader, tags = self._reader, self._syntax.reasoning.answer
        if tags is None:
            return
        reader.hold()
        yield from reader.spaces()
        if (yield from reader.literal(tags[0])):
            self._answer_close = tags[1]
            self._output.end_reasoning()
        else:
            reader.rewind()
        reader.release()

    def _bare(self, syntax: ToolSyntax) -> StreamRead[None]:
        """Parse calls at the start of an answer that are not opened by a section."""
        reader = self._reader
        while (first := (yield from reader.peek())).isspace():
            self._emit_text(1)
        if first and first in syntax.bare:
            yield from self._section(syntax, Section(first, in_call=True))

    def _text(self) -> StreamRead[None]:
        reader, calls = self._reader, self._calls
        openings = {s.open: s for s in calls.sections} if calls is not None else {}
        marks = (*openings, self._answer_close) if self._answer_close else tuple(openings)
        pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        while (yield from reader.need(1)):
            window = reader.window()
            found = pattern.search(window) if marks else None
            if found is not None:
                self._emit_text(found.start())
                if found[0] == self._answer_close:
                    reader.advance(len(found[0]))
                    continue
                assert calls is not None
                yield from self._section(calls, openings[found[0]])
                continue
            kept = held_back(window, marks)
            self._emit_text(len(window) - kept)
            if not (yield from reader.need(kept + 1)):
                self._emit_text(kept)

    def _emit_text(self, count: int) -> None:
        if count:
            text = self._reader.advance(count)
            self._output.add_text(text, self._reader.position)

    def _section(self, syntax: ToolSyntax, section: Section) -> StreamRead[None]:
        """Parse the calls of a section, starting at its opening. The opening is text if no call
        follows."""
        reader, io = self._reader, self._io
        start = reader.position
        reader.hold()
        if not section.in_call:
            reader.advance(len(section.open))
        try:
            yield from reader.spaces()
            yield from syntax.format.read(io)
            yield from reader.spaces()
            if section.close:
                yield from reader.literal(section.close)
        except Malformed:
            io.abandon()
        reader.release()
        if reader.position == start:
            self._emit_text(len(section.open))
