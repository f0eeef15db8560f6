"""A model divided among ranks answers prompts with media as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from media_engine import (
    PLACEHOLDER,
    Answer,
    core_over,
    image,
    media_request,
    run,
    words,
    write_base,
)
from msgspec import structs
from rank_threads import on_two_threads
from test_media_on_device import device_runtime, loaded_with, requests_of
from tp_runtimes import start_single, start_tensor_parallel

from penstock.dialog import Sampling
from penstock.engine.types import MediaItem, TokenRequest
from penstock.models.hub.sources import files_at
from penstock.models.loader.media import media_spec
from penstock.models.media.processor import PlacedMedia
from tests.support.checkpoints.small_llama import WIDTH
from tests.support.checkpoints.small_qwen2_vl import write_small_qwen2_vl
from tests.support.noise_towers import NoiseTower
from tests.support.vision_models import picture

CASES: dict[str, tuple[int, bool, int, dict[str, Any]]] = {
    # positions per token, whole, DeepStack layers, options of the scheduler
    "plain": (1, False, 0, {}),
    "three positions and DeepStack": (3, False, 2, {}),
    "whole": (1, True, 0, {}),
    "chunked": (3, False, 1, {"max_num_batched_tokens": 24}),
    "preempted": (3, False, 1, {"num_blocks": 9}),
}


def assert_same(got: Answer, expected: Answer) -> None:
    """Sums over ranks are rounded differently."""
    assert got.error is None and expected.error is None
    assert [token.token_id for token in got.tokens] == [token.token_id for token in expected.tokens]
    assert [token.logprob for token in got.tokens] == pytest.approx(
        [token.logprob for token in expected.tokens], abs=1e-3
    )


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_answer_as_one(case: str, tmp_path: Path) -> None:
    axes, whole, deep, options = CASES[case]
    tower = NoiseTower(WIDTH, deep)
    write_base(tmp_path, axes)
    alone = device_runtime(tmp_path, tower)
    requests = [*requests_of(axes, whole=whole), penalized(axes)]
    requests = [structs.replace(one, max_tokens=40) for one in requests]
    expected = run(core_over(alone, **options), requests)
    alone.close()
    model, settings = loaded_with(tmp_path, tower)
    with on_two_threads(model, settings) as (ranked, _):
        core = core_over(ranked, **options)
        answers = run(core, requests)
    assert (core.gauges().preemptions > 0) == (case == "preempted")
    for request in requests:
        assert_same(answers[request.id], expected[request.id])
    assert answers["one"].tokens != answers["text"].tokens


def test_the_other_rank_has_the_items_of_rank_0_and_no_tower(tmp_path: Path) -> None:
    tower = NoiseTower(WIDTH, deep=2)
    write_base(tmp_path, 1)
    model, settings = loaded_with(tmp_path, tower)
    with on_two_threads(model, settings) as (ranked, other):
        core = core_over(ranked)
        run(core, [media_request("a", words(9), image("a"), words(3), max_tokens=2)])
        own = ranked._own.device_media
        assert own is not None and other.device_media is not None and other.media is None
        ((digest, item),) = own.encoded.items()
        received = other.device_media.encoded[digest]
        for tensor, copy in zip(
            (item.rows, *item.deep), (received.rows, *received.deep), strict=True
        ):
            np.testing.assert_array_equal(tensor, copy)
    assert tower.pieces == ["a"]  # encoded once, not once per rank


def test_items_that_rank_0_evicts_are_forgotten_by_the_other_rank(tmp_path: Path) -> None:
    tower = NoiseTower(WIDTH)
    write_base(tmp_path, 1)
    model, settings = loaded_with(tmp_path, tower)
    with on_two_threads(model, settings) as (ranked, other):
        core = core_over(ranked, cache_bytes=12 * 4 * WIDTH)  # one item
        for content in "abc":
            run(core, [media_request(content, words(9), image(content), max_tokens=2)])
        assert ranked._own.device_media is not None and other.device_media is not None
        digests = list(ranked._own.device_media.encoded)
        received = list(other.device_media.encoded)
    assert len(digests) == 1 and received == digests


def test_processes_answer_prompts_with_several_images_as_one_device(tmp_path: Path) -> None:
    """A Qwen2-VL: real towers, three positions per token."""
    folder = write_small_qwen2_vl(tmp_path / "qwen2-vl")
    options = {"model": str(folder), "lora": None, "cpu_kv_cache_memory_mb": 0}
    requests = [
        image_request("one", folder, [(37, 91)]),
        image_request("two", folder, [(64, 48), (90, 60)]),
        image_request("none", folder, []),
    ]
    alone = start_single(folder, **options)
    expected = run(core_over(alone), requests)
    alone.close()
    ranked = start_tensor_parallel(folder, **options)
    answers = run(core_over(ranked), requests)
    ranked.close()
    for request in requests:
        assert_same(answers[request.id], expected[request.id])


def image_request(id: str, folder: Path, sizes: list[tuple[int, int]]) -> TokenRequest:
    """Return a prompt of words and images of these sizes."""
    spec = media_spec(files_at(folder, folder.name))
    assert spec is not None
    tokens = list(words(5, len(sizes)))
    placed = []
    for size in sizes:
        media = spec.processor.image(picture(*size))
        expansion = spec.processor.expand(media, lambda text: [PLACEHOLDER])
        placed.append(PlacedMedia(media, expansion, len(tokens)))
        tokens += [*expansion.token_ids, *words(3, len(tokens))]
    positions = spec.processor.rope_positions(tokens, placed)
    items = tuple(
        MediaItem(
            one.media.digest(),
            one.media,
            one.start,
            len(one.expansion.token_ids),
            one.expansion.runs,
        )
        for one in placed
    )
    return TokenRequest(
        id,
        tuple(tokens),
        Sampling(temperature=0.0),
        0,
        8,
        media=items,
        rope_positions=b"" if positions is None else positions.tobytes(),
    )


def penalized(axes: int) -> Any:
    """Return a request whose tokens the CPU of rank 0 samples."""
    return media_request(
        "penalized",
        words(11, 8),
        image("d"),
        axes=axes,
        sampling=Sampling(temperature=0.7, dry_multiplier=1.5, dry_base=1.4, dry_allowed_length=1),
    )
