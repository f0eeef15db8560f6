"""Fetches the media of a request that are given by URL, because a stored conversation may outlive
the URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.base.first_error import all_or_first_error
from penstock.dialog import Audio, GenerateRequest, Image, Video
from penstock.generation.media.readable import parts_of_results
from penstock.models.media.prepared import MediaKind
from penstock.text.chat_templates.media_marks import media_kind

MAX_URLS: Final = 64
"""Maximum number of media that one request gives by URL."""
CONCURRENT_FETCHES: Final = 8

MediaPart: TypeAlias = Image | Audio | Video
Fetch: TypeAlias = Callable[[str, str], Awaitable[tuple[bytes, str | None]]]
"""Returns (content, media type) of (URL, field of the request). Raises ServiceError."""


async def with_fetched_media(
    request: GenerateRequest, kinds: Collection[MediaKind], fetch: Fetch
) -> GenerateRequest:
    """Return the request with the content of all media of `kinds` that are given by URL, except in
    tool results: a URL that cannot be fetched is no error there.

    Raises InvalidRequest (`too_many_media`) and the errors of `fetch`.
    """
    found = {
        (index, number): part
        for index, message in enumerate(request.messages or ())
        for number, part in enumerate(message.parts)
        if isinstance(part, MediaPart)
        and part.data is None
        and media_kind(part) in kinds
        and number not in parts_of_results(message)
    }
    if len(found) > MAX_URLS:
        raise InvalidRequest(
            f"a request may have at most {MAX_URLS} images, recordings and videos by URL",
            field="messages",
            code="too_many_media",
        )
    turn = asyncio.Semaphore(CONCURRENT_FETCHES)

    async def fetched(part: MediaPart, where: str) -> MediaPart:
        async with turn:
            data, mime_type = await fetch(part.url or "", where)
        return msgspec.structs.replace(part, data=data, mime_type=part.mime_type or mime_type)

    parts = await all_or_first_error(
        [fetched(part, request.part_path(*place)) for place, part in found.items()]
    )
    whole = dict(zip(found, parts, strict=True))
    messages = tuple(
        msgspec.structs.replace(
            message,
            parts=tuple(whole.get((index, number), p) for number, p in enumerate(message.parts)),
        )
        for index, message in enumerate(request.messages or ())
    )
    return msgspec.structs.replace(request, messages=messages) if found else request
