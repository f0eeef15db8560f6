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
    """A tool call.

    - `arguments`: the JSON text exactly as the model wrote it.
    - `whole`: False if the model did not finish the call. `arguments` is then incomplete, and the
      call must not be executed.
    """

    id: str
    name: str
    arguments: str
    whole: bool = True


class ToolResult(msgspec.Struct, frozen=True, tag="tool_result"):
    """The result of a tool call.

    - `call_id`: the id of the ToolCall.
    - `text`: the result, or the description of the error.
    - `name`: the function, if known.
    - `is_error`: the call failed.
    """

    call_id: str
    text: str
    name: str | None = None
    is_error: bool = False


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image: its bytes, or the URL from which to fetch them."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class Audio(msgspec.Struct, frozen=True, tag="audio"):
    """An audio recording: its bytes, or the URL from which to fetch them."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class Video(msgspec.Struct, frozen=True, tag="video"):
    """A video: its bytes, or the URL from which to fetch them."""

    url: str | None = None
    data: bytes | None = None
    mime_type: str | None = None


class File(msgspec.Struct, frozen=True, tag="file"):
    """A file from the client. Exactly one of `file_id`, `data` and `url` is set.

    - `file_id`: id of a stored file.
    - `data`: the content, already decoded from base64.
    - `url`: the URL from which to fetch the content.
    """

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
