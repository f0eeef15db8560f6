"""Decides which media of a request the model reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

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
from penstock.models.media.prepared import MEDIA_KINDS, MediaKind
from penstock.text.chat_templates.media_marks import media_kind

Media = Image | Audio | Video | File
_NOUNS: Final[dict[MediaKind, str]] = {"image": "images", "audio": "audio", "video": "video"}


def with_readable_media(request: GenerateRequest, kinds: Collection[MediaKind]) -> GenerateRequest:
    """Return the request without files, and without media of kinds that the model does not read.

    - `kinds`: the kinds that the model reads.

    Such a part directly after a tool result becomes a note in that result: an agent that has read
    an image file could not continue if the request were refused. Raises InvalidRequest that names
    the part for any other such part. (`agent` has already replaced files by media or texts.)
    """
    if all(_is_read(part, kinds) for m in request.messages or () for part in m.parts):
        return request
    messages = tuple(
        _readable(message, index, request, kinds)
        for index, message in enumerate(request.messages or ())
    )
    return msgspec.structs.replace(request, messages=messages)


def what_is_read(kinds: Collection[MediaKind], refused: str) -> str:
    """Return a clause for error messages that says what a model with these kinds reads, and that it
    does not read `refused`."""
    if not kinds:
        return "the model reads text only"
    nouns = ["text", *(_NOUNS[kind] for kind in MEDIA_KINDS if kind in kinds)]
    listed = f"{', '.join(nouns[:-1])} and {nouns[-1]}"
    return f"the model reads {listed}, no {refused}"


def _is_read(part: Part, kinds: Collection[MediaKind]) -> bool:
    return not isinstance(part, Media) or media_kind(part) in kinds


def _readable(
    message: Message, index: int, request: GenerateRequest, kinds: Collection[MediaKind]
) -> Message:
    parts: list[Part] = []
    result_at: int | None = None  # index in `parts` of the result that the next media belong to
    for number, part in enumerate(message.parts):
        if _is_read(part, kinds):
            if isinstance(part, ToolResult):
                result_at = len(parts)
            elif not isinstance(part, Media):
                result_at = None
            parts.append(part)
            continue
        kind = media_kind(part)
        noun = kind or "file"
        reason = what_is_read(kinds, _NOUNS[kind] if kind is not None else "files")
        if result_at is None:
            place = request.part_path(index, number)
            raise InvalidRequest(
                f"`{place}`: could not process {noun}: {reason}",
                field=place,
                code="unsupported_value",
            )
        result = parts[result_at]
        assert isinstance(result, ToolResult)
        told = f"[{noun} left out: {reason}]"
        text = f"{result.text}\n{told}" if result.text else told
        parts[result_at] = msgspec.structs.replace(result, text=text)
    return Message(message.role, tuple(parts), message.name)
