"""Gets the bytes of a request's images, recordings and videos, and has them decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from penstock.base.errors import InvalidRequest
from penstock.base.first_error import all_or_first_error
from penstock.dialog import Audio, GenerateRequest, Image, Part, Video
from penstock.generation.media.readable import parts_of_results
from penstock.models.media.prepared import DigestedMedia, MediaKind
from penstock.models.media.processor import MediaProcessor
from penstock.text.chat_templates.media_marks import media_kind

CONCURRENT_ITEMS: Final = 8
"""Items of one request that are fetched or decoded at the same time."""


MediaPart: TypeAlias = Image | Audio | Video
LoadedMedia: TypeAlias = Mapping[MediaPart, DigestedMedia]
"""The items of a request by their parts. Equal parts share one item."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The media of a request. `failures`: the errors of items of tool results that cannot be
    used."""

    items: LoadedMedia
    failures: Mapping[Part, InvalidRequest]


@dataclass(frozen=True, slots=True)
class _Place:
    """The path of an item in the client's request. `in_result`: it belongs to a tool result."""

    where: str
    in_result: bool


class FetchedContent(Protocol):
    """The field of `fetch.Fetched` that this module uses."""

    @property
    def data(self) -> bytes: ...


class ContentFetcher(Protocol):
    """The method of `fetch.Fetcher` that this module uses."""

    async def fetch(self, url: str, *, field: str) -> FetchedContent: ...


class MediaDecoder(Protocol):
    """The method of `media.MediaCache` that this module uses."""

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> DigestedMedia:
        """Decode and prepare one item. Raises InvalidRequest for the field `where`."""
        ...


@dataclass(frozen=True, slots=True)
class RequestMediaLimits:
    """Limits of the media of one request.

    - `max_items`: images, recordings and videos in all messages.
    - `max_bytes`: encoded bytes of all items.
    - `max_prepared_bytes`: bytes of all prepared items, which are sent to the engine.
    """

    max_items: int = 64
    max_bytes: int = 128 * 1024 * 1024
    max_prepared_bytes: int = 512 * 1024 * 1024


class MediaLoader:
    """Loads the media of requests to one model.

    - `processor`: the model's processor.
    - `decoder`: decodes and prepares the items.
    - `fetcher`: fetches items given by URL; None: URLs are refused.
    """

    def __init__(
        self,
        processor: MediaProcessor,
        decoder: MediaDecoder,
        fetcher: ContentFetcher | None,
        limits: RequestMediaLimits = RequestMediaLimits(),
    ) -> None:
        self.processor = processor
        self._decoder = decoder
        self._fetcher = fetcher
        self._limits = limits

    async def load(self, request: GenerateRequest) -> LoadedMedia:
        """Return the items of a request. The first error ends the work on all items.

        Raises InvalidRequest (`too_many_media`, `media_too_large`), and the errors of the fetcher
        and the decoder, which name the part.
        """
        loaded = await self.load_usable(request)
        for error in loaded.failures.values():
            raise error
        return loaded.items

    async def load_usable(self, request: GenerateRequest) -> Loaded:
        """Return the items of a request, except items of tool results that cannot be used: an agent
        that has read a damaged image could not continue. Raises the errors of `load` for all other
        items."""
        places = self._places(request)
        budget = _Budget(self._limits.max_bytes, "the media of a request")
        turn = asyncio.Semaphore(CONCURRENT_ITEMS)
        loads = [self._item_or_failure(*entry, budget, turn) for entry in places.items()]
        items: dict[MediaPart, DigestedMedia] = {}
        failures: dict[Part, InvalidRequest] = {}
        prepared = _Budget(self._limits.max_prepared_bytes, "the prepared media of a request")
        for part, loaded in zip(places, await all_or_first_error(loads), strict=True):
            if isinstance(loaded, InvalidRequest):
                failures[part] = loaded
            else:
                items[part] = loaded
                prepared.spend(len(loaded.media.data), places[part].where)
        return Loaded(items, failures)

    def _places(self, request: GenerateRequest) -> dict[MediaPart, _Place]:
        """Return the place of each different item."""
        places: dict[MediaPart, _Place] = {}
        count = 0
        for index, message in enumerate(request.messages or ()):
            of_results = parts_of_results(message)
            for number, part in enumerate(message.parts):
                if not isinstance(part, MediaPart):
                    continue
                place = _Place(request.part_path(index, number), number in of_results)
                count += 1
                if count > self._limits.max_items:
                    raise InvalidRequest(
                        f"`{place.where}`: a request may have at most {self._limits.max_items}"
                        " images, recordings and videos",
                        field=place.where,
                        code="too_many_media",
                    )
                if part not in places or (places[part].in_result and not place.in_result):
                    places[part] = place
        return places

    async def _item_or_failure(
        self, part: MediaPart, place: _Place, budget: _Budget, turn: asyncio.Semaphore
    ) -> DigestedMedia | InvalidRequest:
        try:
            return await self._item(part, place.where, budget, turn)
        except InvalidRequest as error:
            if not place.in_result:
                raise
            return error

    async def _item(
        self, part: MediaPart, where: str, budget: _Budget, turn: asyncio.Semaphore
    ) -> DigestedMedia:
        kind = media_kind(part)
        assert kind is not None
        async with turn:
            data = await self._bytes(part, where)
            budget.spend(len(data), where)
            return await self._decoder.prepare(kind, data, where)

    async def _bytes(self, part: MediaPart, where: str) -> bytes:
        if part.data is not None:
            return part.data
        if self._fetcher is None:
            raise InvalidRequest(
                f"`{where}`: media are not fetched from URLs here; send a data: URL",
                field=where,
                code="url_not_allowed",
            )
        return (await self._fetcher.fetch(part.url or "", field=where)).data


@dataclass(slots=True)
class _Budget:
    """Limits the bytes of one request. `noun`: the bytes, for error messages."""

    left_bytes: int
    noun: str

    def spend(self, size_bytes: int, where: str) -> None:
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise InvalidRequest(
                f"`{where}`: {self.noun} are too large together; send fewer or smaller items",
                field=where,
                code="media_too_large",
            )
