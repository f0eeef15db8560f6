"""Descriptions of the marks that model families write around reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.text.tool_parsers.call_format import CallFormat


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of calls between `open` and an optional `close`.

    `in_call`: the opening is part of the first call. `space`: text that the model writes after the
    opening and before the end. `may_be_forced`: a grammar that requires calls allows this section
    too.
    """

    open: str
    close: str = ""
    in_call: bool = False
    space: str = ""
    may_be_forced: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """The syntax in which a model family writes tool calls.

    The first section is the one that the family was trained on; the parser reads the others too.
    `bare`: first characters of an answer that consists of a call without a section.
    `section_per_call`: each call gets its own section, with `section_separator` between them;
    otherwise one section holds all calls. `written_section`: the section that the model writes if
    it is not the first one.
    """

    name: str
    sections: tuple[Section, ...]
    format: CallFormat
    bare: str = ""
    section_per_call: bool = False
    section_separator: str = ""
    written_section: Section | None = None

    @property
    def section(self) -> Section:
        """The section that the model writes around calls."""
        return self.written_section if self.written_section is not None else self.sections[0]

    @property
    def forced_sections(self) -> tuple[Section, ...]:
        """The sections that a grammar which requires calls allows."""
        return (self.section, *(s for s in self.sections if s.may_be_forced))

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Return the text in which the model would write these calls, each (name, arguments)."""
        section, (before, after) = self.section, self.format.wrapper
        head = section.open + section.space + before
        tail = after + section.space + section.close
        written = [self.format.write(name, given, i) for i, (name, given) in enumerate(calls)]
        if self.section_per_call:
            return self.section_separator.join(head + call + tail for call in written)
        return head + self.format.call_separator.join(written) + tail

    def marks(self) -> tuple[str, ...]:
        """Return all literal texts around calls."""
        found = [mark for s in self.sections for mark in (s.open, s.close) if mark]
        return (*found, *self.format.marks())


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The tags around the reasoning, which comes before the answer."""

    open: str
    close: str


@dataclass(frozen=True, slots=True)
class Harmony:
    """The format of gpt-oss: every message names its channel, and a call names its recipient."""

    name: str = "harmony"

    def marks(self) -> tuple[str, ...]:
        return ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")


@dataclass(frozen=True, slots=True)
class AnswerSyntax:
    """The syntax of one model's answers. `calls` Harmony covers reasoning too."""

    calls: ToolSyntax | Harmony | None = None
    reasoning: ReasoningSyntax | None = None
