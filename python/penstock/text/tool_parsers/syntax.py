"""Types that describe the syntax in which model families write reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.text.tool_parsers.call_format import CallFormat


@dataclass(frozen=True, slots=True)
class Section:
    """The texts around one or more calls.

    - `open`: the text that opens the section.
    - `close`: the text that closes the section; "" for none.
    - `in_call`: `open` is part of the first call.
    - `space`: white space that the model writes after `open` and before `close`.
    - `may_be_forced`: a grammar that requires calls allows this section, in addition to the section
      that the model writes.
    """

    open: str
    close: str = ""
    in_call: bool = False
    space: str = ""
    may_be_forced: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """The syntax in which a model family writes tool calls.

    - `name`: the key in TOOL_SYNTAXES.
    - `sections`: sections that the parser reads. The family was trained on the first.
    - `format`: the format of the calls in a section.
    - `bare`: first characters of an answer that may be a call without a section.
    - `bare_end`: a regular expression for the text after the name of such a call.
    - `section_per_call`: each call has its own section; otherwise one section contains all calls.
    - `section_separator`: the text between two sections.
    - `written_section`: the section that the model writes, if it is not the first of `sections`.
    """

    name: str
    sections: tuple[Section, ...]
    format: CallFormat
    bare: str = ""
    bare_end: str = r"\("
    section_per_call: bool = False
    section_separator: str = ""
    written_section: Section | None = None

    @property
    def section(self) -> Section:
        """The section that the model writes around calls."""
        return self.written_section if self.written_section is not None else self.sections[0]

    @property
    def forced_sections(self) -> tuple[Section, ...]:
        """The sections that a grammar allows if it requires calls."""
        return (self.section, *(s for s in self.sections if s.may_be_forced))

    def write(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> str:
        """Return the text that the model would write for the calls, given as (name, arguments)."""
        section, (before, after) = self.section, self.format.wrapper
        head = section.open + section.space + before
        tail = after + section.space + section.close
        written = [self.format.write(name, given, i) for i, (name, given) in enumerate(calls)]
        if self.section_per_call:
            return self.section_separator.join(head + call + tail for call in written)
        return head + self.format.call_separator.join(written) + tail

    def marks(self) -> tuple[str, ...]:
        """Return all literal texts around and in calls."""
        found = [mark for s in self.sections for mark in (s.open, s.close) if mark]
        return (*found, *self.format.marks())


@dataclass(frozen=True, slots=True)
class ReasoningSyntax:
    """The tags before and after the reasoning, which precedes the answer.

    `answer`: the tags around the answer after the reasoning, which the parser drops; None if the
    model writes none.
    """

    open: str
    close: str
    answer: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Harmony:
    """The answer format of gpt-oss: each message names its channel; a tool call also names the
    function as its recipient."""

    name: str = "harmony"

    def marks(self) -> tuple[str, ...]:
        return ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>")


@dataclass(frozen=True, slots=True)
class AnswerSyntax:
    """The syntax of one model's answers.

    - `calls`: the syntax of tool calls, None if the model writes none. Harmony also covers
      reasoning.
    - `reasoning`: the tags around reasoning, None if the model writes none.
    """

    calls: ToolSyntax | Harmony | None = None
    reasoning: ReasoningSyntax | None = None

    @property
    def reasons(self) -> bool:
        """Whether the model writes reasoning."""
        return self.reasoning is not None or isinstance(self.calls, Harmony)
