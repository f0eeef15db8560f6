"""Leaves out media of a request that the model does not read, and media in tool results that
cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
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
Reason = Callable[[Part], str | None]
"""Returns why a part is left out, None if it stays."""
_NOUNS: Final[dict[MediaKind, str]] = {"image": "images", "audio": "audio", "video": "video"}


def with_readable_media(request: GenerateRequest, kinds: Collection[MediaKind]) -> GenerateRequest:
    """Return the request without files, and without media of kinds that the model does not read.

    - `kinds`: the kinds that the model reads.

    Such a part directly after a tool result becomes a note in that result: an agent that has read
    an image file could not continue if the request were refused. Raises InvalidRequest that names
    the part for any other such part. (`agent` has already replaced files by media or texts.)
    """

    def reason(part: Part) -> str | None:
        kind = media_kind(part)
        if not isinstance(part, Media) or kind in kinds:
            return None
        return _what_is_read(kinds, "files" if kind is None else _NOUNS[kind])

    for index, message in enumerate(request.messages or ()):
        for number, part in enumerate(message.parts):
            why = reason(part)
            if why is not None and number not in parts_of_results(message):
                place = request.part_path(index, number)
                raise InvalidRequest(
                    f"`{place}`: could not process {_noun(part)}: {why}",
                    field=place,
                    code="unsupported_value",
                )
    return _with_notes(request, reason)


def without_failed_media(
    request: GenerateRequest, failures: Mapping[Part, InvalidRequest]
) -> GenerateRequest:
    """Return the request with notes in place of the media of tool results in `failures`."""

    def reason(part: Part) -> str | None:
        return failures[part].message if part in failures else None

    return _with_notes(request, reason) if failures else request


def parts_of_results(message: Message) -> frozenset[int]:
    """Return the indices of the media and files that follow a tool result directly, and so belong
    to it."""
    return frozenset(_followers(message))


def _followers(message: Message) -> Iterator[int]:
    follows = False
    for number, part in enumerate(message.parts):
        if isinstance(part, Media):
            if follows:
                yield number
        else:
            follows = isinstance(part, ToolResult)


def _what_is_read(kinds: Collection[MediaKind], refused: str) -> str:
    """Return a clause for error messages that says what a model with these kinds reads, and that it
    does not read `refused`."""
    if not kinds:
        return "the model reads text only"
    nouns = ["text", *(_NOUNS[kind] for kind in MEDIA_KINDS if kind in kinds)]
    listed = f"{', '.join(nouns[:-1])} and {nouns[-1]}"
    return f"the model reads {listed}, no {refused}"


def _noun(part: Part) -> str:
    return media_kind(part) or "file"


def _with_notes(request: GenerateRequest, reason: Reason) -> GenerateRequest:
    if not any(reason(part) for message in request.messages or () for part in message.parts):
        return request
    messages = tuple(_noted(message, reason) for message in request.messages or ())
    return msgspec.structs.replace(request, messages=messages)


def _noted(message: Message, reason: Reason) -> Message:
    parts: list[Part] = []
    result_at = 0  # index in `parts` of the last result
    for part in message.parts:
        why = reason(part)
        if why is None:
            if isinstance(part, ToolResult):
                result_at = len(parts)
            parts.append(part)
            continue
        result = parts[result_at]
        assert isinstance(result, ToolResult), "parts outside tool results were refused before"
        told = f"[{_noun(part)} left out: {why}]"
        text = f"{result.text}\n{told}" if result.text else told
        parts[result_at] = msgspec.structs.replace(result, text=text)
    return Message(message.role, tuple(parts), message.name)
