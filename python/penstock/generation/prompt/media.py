"""Removes media from conversations, since models read text only."""

from __future__ import annotations

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Audio,
    File,
    GenerateRequest,
    Image,
    Message,
    Part,
    ToolResult,
    Video,
)

Media = Image | Audio | Video | File


def without_media(request: GenerateRequest) -> GenerateRequest:
    """Return the request without images, audio, video and files.

    A media part directly after a tool result becomes a note in that result: an agent that has read
    an image file could not continue if the request were refused. Raises InvalidRequest that names
    the part for any other media part. (`agent` has already replaced files by text previews.)
    """
    if not any(isinstance(part, Media) for m in request.messages or () for part in m.parts):
        return request
    messages = tuple(
        _texts(message, index, request) for index, message in enumerate(request.messages or ())
    )
    return msgspec.structs.replace(request, messages=messages)


def _texts(message: Message, index: int, request: GenerateRequest) -> Message:
    parts: list[Part] = []
    for number, part in enumerate(message.parts):
        if not isinstance(part, Media):
            parts.append(part)
            continue
        kind = type(part).__name__.lower()
        result = parts[-1] if parts else None
        if not isinstance(result, ToolResult):
            place = request.part_path(index, number)
            raise InvalidRequest(
                f"`{place}`: could not process {kind}: the model reads text only",
                field=place,
                code="unsupported_value",
            )
        told = f"[{kind} left out: the model reads text only]"
        text = f"{result.text}\n{told}" if result.text else told
        parts[-1] = msgspec.structs.replace(result, text=text)
    return Message(message.role, tuple(parts), message.name)
