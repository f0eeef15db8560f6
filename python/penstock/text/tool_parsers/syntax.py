"""What a family of models writes around reasoning and calls: plain descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.text.tool_parsers.call_format import CallFormat


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of calls. `open` begins it, and `close` may end it; `inside`: the opening belongs
    to the first call. `space` is written behind the opening and before the end. `offered`: where
    calls must be made, the model may choose this form too."""

    open: str
    close: str = ""
    inside: bool = False
    space: str = ""
    offered: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How a family writes calls. The first section is what it was trained to write; the others are
    read too. `bare`: characters with which an answer may begin that is nothing but a call.

    `one_each`: several calls are so many sections, with `gap` between them, else one section.
    `written`: what the model writes, where it is not the first section.
    """

    name: str
    sections: tuple[Section, ...]
    body: CallFormat
    bare: str = ""
    one_each: bool = False
    gap: str = ""
    written: Section | None = None

    @property
    def section(self) -> Section:
        """What the model writes around calls."""
        return self.written if self.written is not None else self.sections[0]

    @property
    def forms(self) -> tuple[Section, ...]:
        """The sections in which a model may be made to write calls."""
        return (self.section, *(s for s in self.sections if s.offered))

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Calls, (name, arguments) each, as the model would write them."""
        section, (before, after) = self.section, self.body.around
        head, tail = section.open + section.space + before, after + section.space + section.close
        written = [self.body.write(name, given, i) for i, (name, given) in enumerate(calls)]
        if self.one_each:
            return self.gap.join(head + call + tail for call in written)
        return head + self.body.between.join(written) + tail

    def marks(self) -> tuple[str, ...]:
        """All texts that are written literally around calls."""
        found = [mark for s in self.sections for mark in (s.open, s.close) if mark]
        return (*found, *self.body.marks())


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The tags around reasoning, which comes before the answer."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Harmony:
    """The channels of gpt-oss: every message names its channel, calls name a recipient."""

    name: str = "harmony"

    def marks(self) -> tuple[str, ...]:
        return ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")


@dataclass(frozen=True, slots=True)
class AnswerSyntax:
    """What one model writes. `calls` Harmony: it covers reasoning too."""

    calls: ToolSyntax | Harmony | None = None
    reasoning: ReasoningSyntax | None = None
