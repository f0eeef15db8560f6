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
    """A tool call. `arguments`: the JSON text exactly as the model wrote it. `whole` False: the
    model did not finish the call; `arguments` is the part that it wrote, and the call must not be
    run."""

    id: str
    name: str
    arguments: str
    whole: bool = True


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a tool call. `is_error`: the call failed, and `text` says how."""

    call_id: str
    text: str
    name: str | None = None
    is_error: bool = False


class Image(msgspec.Struct, frozen=True, tag="image"):
    """A picture: its bytes, or the address they are fetched from."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class Audio(msgspec.Struct, frozen=True, tag="audio"):
    """A sound: its bytes, or the address they are fetched from."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class Video(msgspec.Struct, frozen=True, tag="video"):
    """A film: its bytes, or the address they are fetched from."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class File(msgspec.Struct, frozen=True, tag="file"):
    """A file of the client. Exactly one of `file_id` (in the store), `data` (decoded, never
    base64) and `url` is given."""

    file_id: str | None = None
    name: str | None = None
    data: bytes | None = None
    url: str | None = None
    mime_type: str | None = None


Part = Text | Reasoning | ToolCall | ToolResult | Image | Audio | Video | File


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
