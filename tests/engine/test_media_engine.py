"""An answer to a prompt with media does not depend on how it was computed: alone, in a batch, in
chunks, after a preemption, from a cached prefix, or with media that another request encoded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from media_engine import (
    Answer,
    bits,
    core_over,
    image,
    media_request,
    poison,
    run,
    start_with_tower,
    words,
)

from penstock.dialog import Sampling
from penstock.engine.types import TokenRequest
from penstock.runtime import CpuRuntime
from tests.support.checkpoints.small_llama import WIDTH
from tests.support.noise_towers import NoiseTower

FORMS = {
    "one position": (1, 0, False, "auto"),
    "three positions": (3, 2, False, "auto"),
    "whole": (1, 0, True, "auto"),
    "three positions, int8 cache": (3, 2, False, "int8"),
    "whole, int8 cache": (1, 0, True, "int8"),
}
"""Name -> axes of positions, deep layers, whether items are seen whole, and the KV cache."""

WAYS = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 15},
    "in larger chunks": {"max_num_batched_tokens": 33},
    "by twos": {"max_num_seqs": 2},
    "preempted": {"num_blocks": 8},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without prefix caching": {"prefix_caching": False},
    "without a cache": {"no_kv_cache": True},
    "speculating": {"speculation": True},
}


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def runtime(form: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuRuntime]:
    axes, deep, _, cache = FORMS[form]
    folder = tmp_path_factory.mktemp("model") / "small-llama"
    started = start_with_tower(folder, NoiseTower(WIDTH, deep), axes=axes, kv_cache_dtype=cache)
    yield started
    started.close()


@pytest.fixture(scope="module")
def requests(form: str) -> list[TokenRequest]:
    """Prompts with the same tokens and other images, with shared prefixes, with two images, with
    scored prompts and without images."""
    axes, _, whole, _ = FORMS[form]
    a, b, c = (image(content, whole=whole) for content in "abc")
    big = image("big", rows=13, margin=0, whole=whole)
    tall = image("tall", rows=40, pieces=3) if not whole else a
    head, tail = words(20, 1), words(9, 2)
    free = Sampling(temperature=1.0)

    def one(id: str, *parts: object, **options: object) -> TokenRequest:
        return media_request(id, *parts, axes=axes, **options)  # type: ignore[arg-type]

    return [
        one("text", head, tail, max_tokens=50),
        one("a", head, a, tail, max_tokens=50),
        one("b", head, b, tail, max_tokens=50),
        one("again a", head, a, words(5, 3), sampling=free),
        one("two", head, a, b, tail),
        one("exchanged", head, b, a, tail),
        one("at the start", big, words(4, 4), sampling=free),
        one("at the end", words(3, 5), c),
        one("scored", words(2, 6), c, tail, prompt_logprobs=1),
        one("tall", words(2, 7), tall, tail, max_tokens=20),
    ]


@pytest.fixture(scope="module")
def alone(runtime: CpuRuntime, requests: list[TokenRequest]) -> dict[str, Answer]:
    """The answer to each request by itself, with an empty cache."""
    answers = {}
    for request in requests:
        poison(runtime)
        answers |= run(core_over(runtime, prefix_caching=False), [request])
    return answers


@pytest.mark.parametrize("way", WAYS)
def test_answers_do_not_depend_on_the_schedule(
    runtime: CpuRuntime, requests: list[TokenRequest], alone: dict[str, Answer], way: str
) -> None:
    poison(runtime)
    core = core_over(runtime, **WAYS[way])
    assert bits(run(core, requests)) == bits(alone)
    gauges = core.gauges()
    assert ("preempted" in way) == (gauges.preemptions > 0)
    assert gauges.kv_cache_blocks_used == 0
    assert gauges.media_items_encoded == gauges.encoder_cache_misses


def test_a_second_turn_encodes_nothing_and_finds_its_prefix(
    runtime: CpuRuntime, requests: list[TokenRequest], alone: dict[str, Answer]
) -> None:
    poison(runtime)
    core = core_over(runtime)
    run(core, requests)
    encoded = core.gauges().media_items_encoded
    again = run(core, requests)
    assert bits(again) == bits(alone)
    assert core.gauges().media_items_encoded == encoded
    assert again["a"].cached_tokens == (len(requests[1].token_ids) - 1) // 16 * 16


def test_media_that_were_evicted_are_encoded_again(
    form: str, runtime: CpuRuntime, requests: list[TokenRequest], alone: dict[str, Answer]
) -> None:
    poison(runtime)
    room = 45 * 4 * WIDTH * (1 + FORMS[form][1])
    core = core_over(runtime, cache_bytes=room)
    for _ in range(2):
        for request in requests:
            assert bits(run(core, [request])) == bits({request.id: alone[request.id]})
    gauges = core.gauges()
    contents = {item.digest for request in requests for item in request.media}
    assert gauges.media_items_encoded > len(contents)
    assert gauges.encoder_cache_bytes <= room


def test_equal_tokens_with_other_images_share_only_the_prefix_before_them(
    runtime: CpuRuntime, requests: list[TokenRequest], alone: dict[str, Answer]
) -> None:
    by_id = {request.id: request for request in requests}
    assert by_id["a"].token_ids == by_id["b"].token_ids
    assert alone["a"].tokens != alone["b"].tokens
    assert alone["two"].tokens != alone["exchanged"].tokens
    core = core_over(runtime)
    run(core, [by_id["a"]])
    answer = run(core, [by_id["b"]])["b"]
    assert answer.cached_tokens == 16 and answer.tokens == alone["b"].tokens
