"""The cache of prepared media."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from penstock.base.errors import InvalidRequest
from penstock.media.cache import MediaCache
from penstock.media.decoders import MediaDecoders
from penstock.media.limits import MediaLimits
from penstock.models.media.prepared import PreparedMedia
from tests.support.media_files import image_file, picture


class Counting:
    """Stands in for decoding processes: prepares 8 bytes when `gate` is open, and counts."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def prepare(self, kind, data, where):
        self.calls.append((kind, data))
        await self.gate.wait()
        if data == b"bad":
            raise InvalidRequest("the image is damaged", field=where, code="invalid_image")
        return PreparedMedia.of(kind, np.zeros(8, np.uint8))


async def settle():
    """Let the tasks run until all of them wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_the_same_bytes_are_decoded_once():
    decoders = Counting()
    cache = MediaCache(decoders, "model")
    first = await cache.prepare("image", b"a", "x")
    assert await cache.prepare("image", b"a", "y") is first
    assert decoders.calls == [("image", b"a")]


async def test_a_result_is_digested_once(monkeypatch):
    digest, digested = PreparedMedia.digest, []
    monkeypatch.setattr(PreparedMedia, "digest", lambda self: digested.append(1) or digest(self))
    cache = MediaCache(Counting(), "model")
    items = [await cache.prepare("image", b"a", "x") for _ in range(3)]
    assert len(digested) == 1
    assert {item.digest for item in items} == {digest(items[0].media)}


async def test_kinds_are_kept_apart():
    decoders = Counting()
    cache = MediaCache(decoders, "model")
    assert (await cache.prepare("image", b"a", "x")).media.kind == "image"
    assert (await cache.prepare("video", b"a", "x")).media.kind == "video"


async def test_requests_at_the_same_time_decode_once():
    decoders = Counting()
    decoders.gate.clear()
    cache = MediaCache(decoders, "model")
    tasks = [asyncio.create_task(cache.prepare("image", b"a", "x")) for _ in range(5)]
    await settle()
    assert len(decoders.calls) == 1
    decoders.gate.set()
    assert len({id(result) for result in await asyncio.gather(*tasks)}) == 1


async def test_a_cancelled_request_does_not_cancel_another():
    decoders = Counting()
    decoders.gate.clear()
    cache = MediaCache(decoders, "model")
    first = asyncio.create_task(cache.prepare("image", b"a", "x"))
    second = asyncio.create_task(cache.prepare("image", b"a", "x"))
    await settle()
    first.cancel()
    await settle()
    decoders.gate.set()
    assert (await second).media.kind == "image"
    assert len(decoders.calls) == 1


async def test_the_last_cancelled_request_stops_the_decoding():
    decoders = Counting()
    decoders.gate.clear()
    cache = MediaCache(decoders, "model")
    task = asyncio.create_task(cache.prepare("image", b"a", "x"))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    decoders.gate.set()
    await settle()
    assert cache.num_bytes == 0
    await cache.prepare("image", b"a", "x")
    assert len(decoders.calls) == 2


async def test_an_error_names_the_field_of_each_request_and_is_not_kept():
    decoders = Counting()
    decoders.gate.clear()
    cache = MediaCache(decoders, "model")
    tasks = [asyncio.create_task(cache.prepare("image", b"bad", where)) for where in ("x", "y")]
    await settle()
    decoders.gate.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [(error.field, error.code) for error in errors] == [
        ("x", "invalid_image"),
        ("y", "invalid_image"),
    ]
    with pytest.raises(InvalidRequest):
        await cache.prepare("image", b"bad", "z")
    assert len(decoders.calls) == 2


async def test_the_least_recently_used_result_is_dropped():
    decoders = Counting()
    cache = MediaCache(decoders, "model", max_bytes=16)
    for data in (b"a", b"b", b"a", b"c", b"a"):
        await cache.prepare("image", data, "x")
    assert [data for _, data in decoders.calls] == [b"a", b"b", b"c"]
    assert cache.num_bytes == 16
    await cache.prepare("image", b"b", "x")
    assert [data for _, data in decoders.calls][-1] == b"b"


async def test_a_result_larger_than_the_cache_is_returned_and_not_kept():
    cache = MediaCache(Counting(), "model", max_bytes=7)
    assert len((await cache.prepare("image", b"a", "x")).media.data) == 8
    assert cache.num_bytes == 0


async def test_real_decoders_behind_the_cache():
    decoders = MediaDecoders(None, MediaLimits(processes=1))
    cache = MediaCache(decoders, "model")
    data = image_file(picture(), "PNG")
    results = await asyncio.gather(*(cache.prepare("image", data, "x") for _ in range(3)))
    np.testing.assert_array_equal(results[2].media.array(), picture())
    await decoders.close()
