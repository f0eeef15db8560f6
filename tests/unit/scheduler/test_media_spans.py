"""Media in the scheduler: prefixes with other media are never shared, and a span whose tokens see
each other is computed in one step."""

from __future__ import annotations

from array import array

import pytest
from fake_runtime import Harness, answer_alone
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import InvalidRequest
from penstock.scheduler import MediaSpan
from penstock.scheduler.block_cache import media_key
from penstock.scheduler.prefix_index import PrefixIndex

BLOCK = 4
TOKENS = 24


@st.composite
def media(draw: st.DrawFn) -> tuple[MediaSpan, ...]:
    """Return up to three spans that do not overlap, with digests of different lengths."""
    spans, begin = [], 0
    for _ in range(draw(st.integers(0, 3))):
        start = begin + draw(st.integers(0, 5))
        length = draw(st.integers(1, 9))
        if start + length > TOKENS:
            break
        spans.append(MediaSpan(start, length, draw(st.sampled_from([b"a", b"b", b"ab", b""]))))
        begin = start + length
    return tuple(spans)


def contents(spans: tuple[MediaSpan, ...], end: int) -> list[tuple[bytes, int] | None]:
    """Return the digest and the place in the span of each token before `end`."""
    found: list[tuple[bytes, int] | None] = [None] * end
    for span in spans:
        for place in range(span.length):
            if span.start + place < end:
                found[span.start + place] = (span.digest, place)
    return found


def keys(spans: tuple[MediaSpan, ...]) -> list[bytes]:
    index = PrefixIndex(1, b"secret")
    made, block = [index.root(b"")], array("i", [7] * BLOCK)
    for first in range(0, TOKENS, BLOCK):
        made.append(index.child(made[-1], block, media_key(spans, first, BLOCK)))
    return made[1:]


@given(media(), media())
def test_blocks_have_one_key_only_if_all_tokens_before_have_the_same_media(
    one: tuple[MediaSpan, ...], other: tuple[MediaSpan, ...]
) -> None:
    for number, (a, b) in enumerate(zip(keys(one), keys(other), strict=True), 1):
        end = number * BLOCK
        if a == b:
            assert contents(one, end) == contents(other, end)


@given(media())
def test_equal_media_have_equal_keys(spans: tuple[MediaSpan, ...]) -> None:
    assert keys(spans) == keys(tuple(spans))


def test_an_image_hits_the_blocks_of_the_same_image_only() -> None:
    harness = Harness(block_size=BLOCK, max_num_batched_tokens=64)
    prompt = [1, 2, 3, *[9] * 10, 4, 5]
    for id, content in (("a", b"A"), ("b", b"B"), ("again", b"A")):
        harness.submit(id, prompt, 4, media=(MediaSpan(3, 10, content),))
        harness.run()
    assert harness.cached == {"a": 0, "b": 0, "again": 12}
    spans = {id: (MediaSpan(3, 10, content),) for id, content in (("a", b"A"), ("b", b"B"))}
    for id, own in spans.items():
        assert harness.answers[id] == answer_alone(prompt, 4, frozenset(), media=own)
    assert harness.answers["a"] == harness.answers["again"] != harness.answers["b"]


def test_text_before_an_image_is_shared() -> None:
    harness = Harness(block_size=BLOCK, max_num_batched_tokens=64)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, *[9] * 6, 4]
    for id, content in (("a", b"A"), ("b", b"B")):
        harness.submit(id, prompt, 2, media=(MediaSpan(8, 6, content),))
        harness.run()
    assert harness.cached == {"a": 0, "b": 8}


def test_a_chunk_ends_before_a_whole_span_or_after_it() -> None:
    harness = Harness(block_size=BLOCK, max_num_batched_tokens=10)
    harness.submit("r", list(range(30)), 2, media=(MediaSpan(6, 9, b"A", whole=True),))
    chunks = []
    while (plan := harness.step()) is not None:
        chunks += [(one.start, one.length) for one in plan.chunks]
    assert chunks == [(0, 6), (6, 9), (15, 10), (25, 5), (30, 1)]


def test_a_cached_prefix_may_end_inside_a_whole_span() -> None:
    harness = Harness(block_size=BLOCK, max_num_batched_tokens=64)
    spans = (MediaSpan(2, 8, b"A", whole=True),)
    prompt = [1, 2, *[9] * 8, 3]
    for id, tail in (("a", [4]), ("b", [5])):
        harness.submit(id, prompt[:10] + tail, 1, media=spans)
        harness.run()
    assert harness.cached["b"] == 8


def test_decodes_leave_room_for_the_whole_span_of_the_oldest_prompt() -> None:
    """A step of 8 tokens holds the span of 8 tokens or the 3 decodes, and computes the span."""
    harness = Harness(block_size=BLOCK, max_num_batched_tokens=8, max_num_seqs=4)
    for id in "abc":
        harness.submit(id, [ord(id) % 50], 20)
    harness.step()
    harness.submit("image", [5, 6, *[9] * 8, 7], 1, media=(MediaSpan(2, 8, b"A", whole=True),))
    lengths = []
    for _ in range(4):
        plan = harness.step()
        assert plan is not None
        lengths.append([chunk.length for chunk in plan.chunks])
    assert lengths[:2] == [[1, 1, 1, 2], [8]]
    harness.run()
    assert set(harness.finishes.values()) == {"length"}


def test_a_whole_span_longer_than_a_step_is_refused_with_the_numbers() -> None:
    harness = Harness(max_num_batched_tokens=8)
    with pytest.raises(InvalidRequest, match=r"9 tokens.*at most 8 \(max_num_batched_tokens\)"):
        harness.submit("r", [9] * 20, 1, media=(MediaSpan(2, 9, b"A", whole=True),))
    assert not harness.scheduler.has_work
    harness.submit("r", [9] * 20, 1, media=(MediaSpan(2, 9, b"A"),))


def test_a_whole_span_is_scored_in_several_steps() -> None:
    """A step has fewer logits for the prompt than the span has tokens."""
    harness = Harness(max_num_batched_tokens=64, max_num_seqs=2, num_blocks=32)
    spans = (MediaSpan(3, 50, b"A", whole=True),)
    prompt = [1, 2, 3, *[9] * 50, 4]
    harness.submit("r", prompt, 1, media=spans, prompt_logprobs=0)
    chunks = []
    while (plan := harness.step()) is not None:
        chunks += [(one.start, one.length, one.num_scores) for one in plan.chunks]
    assert sum(scores for _, _, scores in chunks) == len(prompt) - 1
    assert all(start + length in (3, 53, 54) for start, length, _ in chunks)
    assert len(harness.scores["r"]) == len(prompt) - 1
