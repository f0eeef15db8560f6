"""The channels of one answer, told apart while it is written."""

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
    Reading,
    held_back,
    pass_text,
)
from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, Section, ToolSyntax


class AnswerParser:
    """Splits the text of one choice into text, reasoning and calls.

    What comes out, pieces of a kind joined, depends on the text only and not on how it was cut.
    A call begins once its function is known to be one of `tools` and its arguments come; what
    looks like a call and is none, and the rest of a call that breaks off, come back as text.
    `tools` empty: calls are text. `thinking`: the prompt has opened the reasoning already.
    """

    def __init__(
        self, channels: AnswerSyntax, tools: Sequence[FunctionTool] = (), *, thinking: bool = False
    ) -> None:
        self._reader = Reader()
        self._channels = channels
        calls = channels.calls
        self._report = OutputBuilder(keeps_spaces=bool(tools) and not isinstance(calls, Harmony))
        self._io = CallReader(self._reader, tools, self._report.add)
        self._run = self._harmony() if isinstance(calls, Harmony) else self._answer(thinking)
        self._calls = calls if tools and isinstance(calls, ToolSyntax) else None
        if thinking:
            self._report.begin_thought()

    @property
    def reasoning(self) -> bool:
        """Whether what was read last is reasoning."""
        return self._report.reasoning

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._io.count

    def push(self, text: str) -> list[ParserOutput]:
        """The pieces that this much more text makes certain."""
        self._reader.feed(text)
        next(self._run)
        return self._report.take()

    def finish(self) -> list[ParserOutput]:
        """What is left, at the end of the text."""
        self._reader.end()
        for _ in self._run:
            raise AssertionError("nothing to wait for at the end")
        self._report.finish(self._reader.position)
        return self._report.take()

    def _harmony(self) -> Reading[None]:
        yield from HarmonyParser(self._io, self._report).run()

    def _answer(self, thinking: bool) -> Reading[None]:
        if self._channels.reasoning is not None:
            yield from self._think(thinking)
        if self._calls is not None and self._calls.bare:
            yield from self._bare(self._calls)
        yield from self._text()

    def _think(self, opened: bool) -> Reading[None]:
        assert self._channels.reasoning is not None
        reader, tags = self._reader, self._channels.reasoning
        if not opened:
            reader.hold()
            yield from reader.spaces()
            opened = bool((yield from reader.literal(tags.open)))
            if not opened:
                reader.rewind()
                reader.release()
                return
            reader.release()
            self._report.begin_thought()
        try:
            yield from pass_text(reader, (tags.close,), self._report.think)
        except Malformed:  # it was cut off within its reasoning
            self._report.think(reader.advance(len(reader.window())))
            return
        self._report.end_thought()

    def _bare(self, syntax: ToolSyntax) -> Reading[None]:
        """An answer that may be a call with nothing around it."""
        reader = self._reader
        while (first := (yield from reader.peek())).isspace():
            self._say(1)
        if first and first in syntax.bare:
            yield from self._section(syntax, Section(first, inside=True))

    def _text(self) -> Reading[None]:
        reader, calls = self._reader, self._calls
        openings = {s.open: s for s in calls.sections} if calls is not None else {}
        marks = tuple(openings)
        pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        while (yield from reader.need(1)):
            window = reader.window()
            found = pattern.search(window) if marks else None
            if found is not None:
                self._say(found.start())
                assert calls is not None
                yield from self._section(calls, openings[found[0]])
                continue
            kept = held_back(window, marks)
            self._say(len(window) - kept)
            if not (yield from reader.need(kept + 1)):
                self._say(kept)

    def _say(self, count: int) -> None:
        if count:
            text = self._reader.advance(count)
            self._report.say(text, self._reader.position)

    def _section(self, syntax: ToolSyntax, section: Section) -> Reading[None]:
        """Calls from an opening on; the opening is text if no call follows it."""
        reader, io = self._reader, self._io
        start = reader.position
        reader.hold()
        if not section.inside:
            reader.advance(len(section.open))
        try:
            yield from reader.spaces()
            yield from syntax.body.read(io)
            yield from reader.spaces()
            if section.close:
                yield from reader.literal(section.close)
        except Malformed:
            io.abandon()
        reader.release()
        if reader.position == start:
            self._say(len(section.open))
