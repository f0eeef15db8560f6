"""The media of a request are fetched and decoded once each, within the limits of a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, Image, Message, Part, Text, ToolResult
from penstock.generation.media.loader import LoadedMedia, MediaLoader, RequestMediaLimits
from penstock.generation.media.readable import without_failed_media
from penstock.models.media.prepared import DigestedMedia, MediaKind
from tests.support.media.small_processor import PillowDecoder, SmallProcessor, png

PROCESSOR = SmallProcessor()
RED, BLUE = Image(data=png(16, 16)), Image(data=png(16, 16, (0, 0, 255)))


@dataclass
class Content:
    data: bytes


class Pages:
    """Fetches from a dictionary of pages. `fetched`: (url, field) of all fetches."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self._pages = pages
        self.fetched: list[tuple[str, str]] = []

    async def fetch(self, url: str, *, field: str) -> Content:
        self.fetched.append((url, field))
        if url not in self._pages:
            raise InvalidRequest("no such page", field=field, code="url_unreachable")
        return Content(self._pages[url])


def request(*parts: Part) -> GenerateRequest:
    paths = tuple(f"messages[0].content[{index}].image_url" for index in range(len(parts)))
    return GenerateRequest(messages=(Message("user", parts),), part_paths=(paths,))


def load(loader: MediaLoader, *parts: Part) -> LoadedMedia:
    return asyncio.run(loader.load(request(*parts)))


def refusal(loader: MediaLoader, *parts: Part) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        load(loader, *parts)
    return caught.value


def test_each_different_item_is_prepared_once() -> None:
    decoder = PillowDecoder(PROCESSOR)
    loaded = load(MediaLoader(PROCESSOR, decoder, None), RED, Text("and"), BLUE, RED)
    assert sorted(decoder.prepared) == [f"messages[0].content[{i}].image_url" for i in (0, 2)]
    assert list(loaded) == [RED, BLUE]
    assert loaded[RED].media.shape == (4, 192)
    assert loaded[RED].digest == loaded[RED].media.digest() != loaded[BLUE].digest


def test_urls_are_fetched_and_named_in_errors() -> None:
    pages = Pages({"http://a/red.png": RED.data or b"", "http://a/page": b"<html>"})
    loader = MediaLoader(PROCESSOR, PillowDecoder(PROCESSOR), pages)
    by_url = Image(url="http://a/red.png")
    assert load(loader, by_url)[by_url].media.shape == (4, 192)
    missing = refusal(loader, RED, Image(url="http://a/none"))
    assert (missing.code, missing.field) == ("url_unreachable", "messages[0].content[1].image_url")
    damaged = refusal(loader, Image(url="http://a/page"))
    assert (damaged.code, damaged.field) == ("invalid_image", "messages[0].content[0].image_url")


def test_urls_are_refused_without_a_fetcher() -> None:
    refused = refusal(
        MediaLoader(PROCESSOR, PillowDecoder(PROCESSOR), None), Image(url="http://a/")
    )
    assert refused.code == "url_not_allowed"


@pytest.mark.parametrize(
    ("limits", "code", "index"),
    [
        (RequestMediaLimits(max_items=2), "too_many_media", 2),
        (RequestMediaLimits(max_bytes=len(RED.data or b"") + 1), "media_too_large", 1),
        (RequestMediaLimits(max_prepared_bytes=4 * 192), "media_too_large", 1),
    ],
)
def test_a_request_has_limits(limits: RequestMediaLimits, code: str, index: int) -> None:
    loader = MediaLoader(PROCESSOR, PillowDecoder(PROCESSOR), None, limits)
    refused = refusal(loader, RED, BLUE, RED)
    assert refused.code == code
    assert refused.field == f"messages[0].content[{index}].image_url"


class Waiting:
    """Prepares nothing: the second item is refused while the first is being decoded."""

    def __init__(self, kinds: Sequence[MediaKind]) -> None:
        self.cancelled = False

    async def prepare(self, kind: MediaKind, data: bytes, where: str) -> DigestedMedia:
        if data == BLUE.data:
            raise InvalidRequest("bad", field=where, code="invalid_image")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


def test_the_first_error_ends_the_work_on_all_items() -> None:
    decoder = Waiting(("image",))
    assert refusal(MediaLoader(PROCESSOR, decoder, None), RED, BLUE).code == "invalid_image"
    assert decoder.cancelled


def test_items_of_tool_results_that_cannot_be_decoded_are_failures() -> None:
    decoder = PillowDecoder(PROCESSOR)
    loader = MediaLoader(PROCESSOR, decoder, Pages({}))
    damaged, missing = Image(data=b"\x89PNG"), Image(url="http://a/none")
    result = ToolResult("c", "read")
    loaded = asyncio.run(loader.load_usable(request(result, RED, damaged, missing)))
    assert list(loaded.items) == [RED] and list(loaded.failures) == [damaged, missing]
    asked = without_failed_media(request(result, RED, damaged, missing), loaded.failures)
    (message,) = asked.messages or ()
    told = (
        "read\n[image left out: `messages[0].content[2].image_url` is not an image]"
        "\n[image left out: no such page]"
    )
    assert message.parts == (ToolResult("c", told), RED)
    assert refusal(loader, result, damaged).code == "invalid_image"
    assert refusal(loader, result, damaged, Text("and"), damaged).code == "invalid_image"
