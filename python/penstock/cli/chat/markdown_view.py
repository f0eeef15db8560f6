"""Renders the Markdown of an answer while it is generated."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Final

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown
from rich.segment import Segment

from penstock.cli.chat.answer_view import CONTROL_CHARACTERS, PlainView

CODE_THEME: Final = "ansi_dark"
"""A theme of the terminal's own colours, readable on dark and light backgrounds."""
REFRESH_S: Final = 0.1
SPARE_LINES: Final = 2
"""Lines of the terminal that an unfinished block leaves free."""


class LeftHeading(Heading):
    """A heading at the left edge. rich centres headings and draws a box around the first level."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text
        text.justify = "left"
        yield text


class AnswerMarkdown(Markdown):
    """Markdown as answers of models have it."""

    elements = {**Markdown.elements, "heading_open": LeftHeading}  # noqa: RUF012

    def __init__(self, text: str) -> None:
        super().__init__(text, code_theme=CODE_THEME, hyperlinks=False)


class Block:
    """A piece of Markdown without the empty lines that rich puts around some kinds."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        """Return the rendered lines."""
        lines = console.render_lines(AnswerMarkdown(self.text), options, pad=False)
        shown = [number for number, line in enumerate(lines) if _is_visible(line)]
        return lines[shown[0] : shown[-1] + 1] if shown else []

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.lines(console, options):
            yield from line
            yield Segment.line()


class UnfinishedBlock(Block):
    """The block that is being written. Shows its last lines if it is taller than the terminal,
    because a terminal cannot redraw lines that it scrolled away.

    `follows_output`: whether an empty line separates it from the output above.
    """

    follows_output = False

    def lines(self, console: Console, options: ConsoleOptions) -> list[list[Segment]]:
        lines = super().lines(console, options)[-max(1, console.size.height - SPARE_LINES) :]
        return [[], *lines] if self.follows_output else lines


class MarkdownView(PlainView):
    """Prints each block, such as a paragraph, a table or a piece of code, once it is complete. Only
    the block that is being written is redrawn, by a timer of the running event loop: rich's own
    timer is a thread, whose output mixes with that of `print`.

    `refresh_s`: seconds from a new piece of text until it is shown.
    """

    def __init__(self, console: Console, refresh_s: float = REFRESH_S) -> None:
        super().__init__(console)
        self._refresh_s = refresh_s
        self._parser = MarkdownIt().enable("strikethrough").enable("table")
        self._block = UnfinishedBlock()
        self._live: Live | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin_text(self) -> None:
        self.pause()

    def text(self, text: str) -> None:
        self._block.text += CONTROL_CHARACTERS.sub("", text)
        for block in self._take_complete_blocks():
            self._print(block)
        if self._live is None and self._block.text.strip():
            self._live = self._new_live()
            self._live.start(refresh=True)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._refresh_s, self._refresh)

    def _refresh(self) -> None:
        self._timer = None
        if self._live is not None:
            self._live.refresh()

    def pause(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is not None:
            self._live.stop()
            self._live = None
        rest, self._block.text = self._block.text, ""
        if rest.strip():
            self._print(rest)

    def stop(self) -> None:
        self.pause()

    def end(self) -> None:
        self.pause()
        self._console.print()

    def _take_complete_blocks(self) -> list[str]:
        """Remove the complete blocks from the text and return them. The last block may still
        grow."""
        if "\n" not in self._block.text:
            return []
        tokens = self._parser.parse(self._block.text)
        begins = sorted({token.map[0] for token in tokens if token.level == 0 and token.map})
        if len(begins) < 2:
            return []
        lines = self._block.text.split("\n")
        self._block.text = "\n".join(lines[begins[-1] :])
        return ["\n".join(lines[begin:end]) for begin, end in pairwise(begins)]

    def _print(self, block: str) -> None:
        if self._block.follows_output:
            self._console.print()
        self._block.follows_output = True
        self._console.print(Block(block), end="")

    def _new_live(self) -> Live:
        return Live(
            self._block,
            console=self._console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )


def _is_visible(line: list[Segment]) -> bool:
    return any(not segment.control and segment.text.strip() for segment in line)
