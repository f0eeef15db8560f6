"""What a family of models writes around reasoning and calls: plain descriptions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.text.channels.calls import CallBody


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of calls. `open` begins it, and `close` may end it; `inside`: the opening belongs
    to the first call."""

    open: str
    close: str = ""
    inside: bool = False


@dataclass(frozen=True, slots=True)
class ToolSyntax:
    """How a family writes calls. The first section is what it was trained to write; the others are
    read too. `bare`: characters with which an answer may begin that is nothing but a call.
    """

    name: str
    sections: tuple[Section, ...]
    body: CallBody
    bare: str = ""

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
class Channels:
    """What one model writes. `calls` Harmony: it covers reasoning too."""

    calls: ToolSyntax | Harmony | None = None
    reasoning: ReasoningSyntax | None = None
