"""The encoder cache and the queue of requests whose media are being encoded."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.base.errors import InvalidRequest, Overloaded
from penstock.engine.media import encode_queue
from penstock.engine.media.encode_queue import EncodeQueue
from penstock.engine.media.encoder_cache import EncoderCache
from penstock.engine.types import EngineGauges, MediaItem
from penstock.kernels.reference import ReferenceOps
from penstock.models.towers.piece_budget import MOST_OPERATIONS
from penstock.models.towers.tower import EncodedMedia
from penstock.runtime.media import TowerMedia
from tests.support.noise_towers import NoiseTower, item, noise, picture

WIDTH = 8
ROW_BYTES = 4 * WIDTH


class Setup:
    """A queue over a noise tower, with room for `room` rows."""

    def __init__(self, room: int = 100, deep: int = 0) -> None:
        self.tower = NoiseTower(WIDTH, deep)
        self.media: TowerMedia[Any] = TowerMedia(
            [(self.tower.kinds, self.tower)],
            ReferenceOps(),
            WIDTH,
            lambda tensor: tensor.numpy().copy(),
        )
        self.cache = EncoderCache(self.media, room * ROW_BYTES)
        self.queue = EncodeQueue(self.media, self.cache, clock=lambda: 0.0)

    def enter(self, id: str, *items: MediaItem) -> bool:
        return self.queue.enter(id, items)

    def run(self) -> list[tuple[str, str | None]]:
        """Advance by pieces until nothing can be encoded. Return the news in order."""
        news: list[tuple[str, str | None]] = []
        while self.queue.has_work:
            news += self.queue.advance(None).items()
        return news

    def gauges(self) -> EngineGauges:
        gauges = EngineGauges()
        self.queue.report(gauges)
        return gauges


def image(content: str, rows: int = 4, pieces: int = 1) -> MediaItem:
    return item(picture(content, rows, pieces), 0)


def test_a_request_is_ready_when_all_its_media_are_encoded() -> None:
    setup = Setup()
    assert not setup.enter("r", image("a", pieces=3), image("b", pieces=2))
    assert [setup.queue.advance(0) for _ in range(5)] == [{}, {}, {}, {}, {"r": None}]
    assert setup.tower.pieces == ["a"] * 3 + ["b"] * 2
    assert not setup.queue.has_work
    (encoded, _) = setup.media.encoded.values()
    assert np.array_equal(encoded.rows, noise(picture("a", 4, 3), WIDTH))


def test_requests_are_served_in_order_of_arrival() -> None:
    setup = Setup()
    setup.enter("first", image("a", pieces=2), image("b"))
    setup.enter("second", image("c"))
    assert setup.run() == [("first", None), ("second", None)]
    assert setup.tower.pieces == ["a", "a", "b", "c"]


def test_equal_media_are_encoded_once_for_requests_that_arrive_together() -> None:
    setup = Setup()
    setup.enter("one", image("a", pieces=2))
    setup.enter("two", image("a", pieces=2), image("a", pieces=2))
    assert setup.run() == [("one", None), ("two", None)]
    assert setup.tower.pieces == ["a", "a"]
    gauges = setup.gauges()
    assert gauges.media_items_encoded == 1
    assert (gauges.encoder_cache_hits, gauges.encoder_cache_misses) == (1, 1)


def test_a_later_request_finds_media_in_the_cache_and_passes_the_queue() -> None:
    setup = Setup()
    setup.enter("one", image("a"))
    setup.run()
    setup.enter("slow", image("b", pieces=9))
    assert setup.enter("again", image("a"))
    assert setup.tower.pieces == ["a"]


def test_the_least_recently_used_item_is_evicted() -> None:
    setup = Setup(room=8)
    for content in ("a", "b"):
        setup.enter(content, image(content))
        setup.run()
        setup.queue.leave(content)
    assert setup.enter("again", image("a"))
    setup.queue.leave("again")
    setup.enter("c", image("c"))
    setup.run()
    assert image("a").digest in setup.cache and image("b").digest not in setup.cache
    assert setup.cache.size_bytes == 8 * ROW_BYTES
    assert len(setup.media.encoded) == 2


def test_held_items_stay_and_a_new_one_waits_for_room() -> None:
    setup = Setup(room=8)
    setup.enter("one", image("a", rows=6))
    setup.run()
    setup.enter("two", image("b", rows=6))
    assert setup.run() == [] and setup.tower.pieces == ["a"]
    setup.queue.leave("one")
    assert setup.run() == [("two", None)]
    assert setup.cache.size_bytes == 6 * ROW_BYTES


def test_requests_that_wait_for_each_others_room_come_to_an_end() -> None:
    setup = Setup(room=8)
    setup.enter("old", image("x"), image("a", rows=4))
    setup.queue.advance(0)
    setup.enter("new", image("x"), image("b", rows=4))
    assert setup.run() == [("old", None)]
    setup.queue.leave("old")
    assert setup.run() == [("new", None)]


def test_media_larger_than_the_cache_are_refused_with_numbers() -> None:
    setup = Setup(room=3 * 2**20 // ROW_BYTES)
    setup.queue.check([image("a", rows=2**16), image("a", rows=2**16)])
    with pytest.raises(InvalidRequest, match=r"need 4 MiB.*limit is 3 MiB \(encoder_cache_mb\)"):
        setup.queue.check([image("a", rows=2**16), image("b", rows=2**16)])


def test_an_item_must_have_as_many_tokens_in_every_request() -> None:
    setup = Setup()
    one = image("a", rows=4)
    other = msgspec.structs.replace(one, runs=((0, 3),))
    setup.enter("waits", one)
    with pytest.raises(InvalidRequest, match="the image has 3 tokens, but 4 embeddings"):
        setup.queue.check([other])
    setup.run()
    with pytest.raises(InvalidRequest, match="the image has 3 tokens, but 4 embeddings"):
        setup.queue.check([other])
    setup.queue.check([one])


def test_prepared_media_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_queue, "MAX_WAITING_BYTES", 10)
    setup = Setup()
    setup.queue.check([image("more than ten bytes")])
    setup.enter("one", image("12345678"))
    setup.queue.check([image("12345678")])
    with pytest.raises(Overloaded, match="1 images, videos or recordings are waiting"):
        setup.queue.check([image("123")])
    setup.run()
    setup.queue.check([image("123")])


def test_an_item_with_more_bytes_than_expected_is_kept_while_it_is_used() -> None:
    setup = Setup(room=8, deep=3)
    setup.enter("one", image("a"))
    assert setup.run() == [("one", None)]
    assert setup.cache.size_bytes == 16 * ROW_BYTES
    setup.queue.leave("one")
    assert setup.cache.size_bytes == 0 and not setup.media.encoded


def test_an_abort_stops_the_encoding_and_frees_everything() -> None:
    setup = Setup()
    setup.enter("one", image("a"), image("b", pieces=9))
    for _ in range(3):
        setup.queue.advance(0)
    setup.queue.leave("one")
    assert setup.tower.closed == ["b"]
    assert not setup.queue.has_work and setup.cache.held_bytes == 0
    setup.enter("next", image("c"))
    assert setup.run() == [("next", None)]


def test_an_abort_goes_on_encoding_for_another_request() -> None:
    setup = Setup()
    setup.enter("one", image("a", pieces=4))
    setup.enter("two", image("a", pieces=4))
    setup.queue.advance(0)
    setup.queue.leave("one")
    assert setup.run() == [("two", None)]
    assert setup.tower.pieces == ["a"] * 4 and not setup.tower.closed


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raises", "the image could not be encoded"),
        ("nan", "the model gave no finite numbers for this image"),
        ("short", "the image gave 3 embeddings for 4 tokens"),
    ],
)
def test_a_fault_ends_only_the_requests_of_the_item(fault: Any, message: str) -> None:
    setup = Setup()
    setup.tower.faults["bad"] = fault
    setup.enter("good", image("a"))
    setup.enter("bad", image("b"), image("bad", pieces=2))
    setup.enter("also bad", image("bad", pieces=2))
    setup.enter("later", image("c"))
    assert setup.run() == [
        ("good", None), ("bad", message), ("also bad", message), ("later", None)
    ]  # fmt: skip
    for id in ("good", "later"):
        setup.queue.leave(id)
    assert setup.cache.held_bytes == 0


def test_pieces_go_on_until_the_budget_is_spent() -> None:
    setup = Setup()
    ticks = iter(range(100))
    queue = EncodeQueue(setup.media, setup.cache, clock=lambda: next(ticks))
    queue.enter("r", [image("a", pieces=9)])
    queue.advance(budget_s=0)
    assert len(setup.tower.pieces) == 1 and queue.last_s == 1
    queue.advance(budget_s=7.5)  # half of it is enough
    assert len(setup.tower.pieces) == 5 and queue.last_s == 4
    gauges = EngineGauges()
    queue.report(gauges)
    assert gauges.media_encode_seconds == 1 + 4


def test_without_a_limit_one_large_piece_is_encoded() -> None:
    setup = Setup()
    setup.enter("r", image("a", pieces=3))
    setup.queue.advance(0)
    setup.queue.advance(None)
    assert len(setup.tower.pieces) == 2
    least, most = setup.tower.sizes
    assert least == 0 and most == MOST_OPERATIONS


def test_a_released_item_is_used_as_late_as_its_release() -> None:
    setup = Setup(room=8)
    media = setup.media
    cache = EncoderCache(media, 2 * ROW_BYTES)
    for digest in (b"a", b"b"):
        cache.add(digest, EncodedMedia(np.zeros((1, WIDTH), np.float32)))
    cache.hold([b"a"])
    cache.release([b"a"])
    cache.add(b"c", EncodedMedia(np.zeros((1, WIDTH), np.float32)))
    assert b"a" in cache and b"b" not in cache
