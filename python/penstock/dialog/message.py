"""Messages and their parts."""

from __future__ import annotations

from typing import Literal

import msgspec

Role = Literal["system", "developer", "user", "assistant", "tool"]


class Text(msgspec.Struct, frozen=True, tag="text"):
    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    text: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """`arguments` is the JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    call_id: str
    text: str
    name: str | None = None


# Image, Audio, Video and File join with the media runtimes that read them.
Part = Text | Reasoning | ToolCall | ToolResult


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
