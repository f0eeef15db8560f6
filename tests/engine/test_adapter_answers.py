"""A row with an adapter computes what a model with the adapter merged into it computes, and that
does not depend on its batch: bit for bit, in every way that a request may go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import (
    BLOCK,
    draw_adapters,
    last_logits,
    settings,
    start,
    with_adapters,
    write_merged,
    write_quantized,
)
from scheduled_requests import (
    Outcome,
    PlanAndCalls,
    generate,
    poison,
    requests_over,
    row_table_of,
    scheduler_of,
)

from penstock.dialog import Sampling
from penstock.runtime import CpuRuntime
from penstock.scheduler import NO_ADAPTER, NewSequence
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

PROMPT = tuple(np.random.default_rng(7).integers(0, VOCAB, 24).tolist())
# slot of each of the nine requests: base and four adapters, neighbours that share a prefix differ
SLOTS = [NO_ADAPTER, 0, 1, NO_ADAPTER, 2, 1, 3, 0, 1]
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "by twos": {"max_num_seqs": 2},
    "preempted": {"num_blocks": 8},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without prefix caching": {"prefix_caching": False},
    "without a cache": {"no_kv_cache": True},
    "speculating": {"speculation": True},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("base") / "small-llama")


@pytest.mark.parametrize(("dtype", "bound"), [("f32", 2e-5), ("auto", 5e-3)])
def test_an_adapter_gives_the_logits_of_merged_weights(
    base: Path, tmp_path: Path, dtype: str, bound: float
) -> None:
    # Attention over a float16 cache may round more than the bound.
    runtime = with_adapters(start(base, dtype=dtype, kv_cache_dtype="f32"), tmp_path)
    together = last_logits(runtime, [(PROMPT, slot) for slot in (0, NO_ADAPTER, 2, 1, 3)])
    bare = last_logits(runtime, [(PROMPT, NO_ADAPTER)])[0]
    assert (together[1] == bare).all()
    for index, slot in ((0, 0), (2, 2), (3, 1), (4, 3)):
        merged = write_merged(base, draw_adapters(tmp_path)[slot], tmp_path / f"merged-{slot}")
        truth = last_logits(start(merged, dtype="f32", lora=None), [(PROMPT, NO_ADAPTER)])[0]
        scale = np.abs(truth).max()
        assert np.abs(together[index] - truth).max() < bound * scale
        assert np.abs(bare - truth).max() > 0.1 * scale, "the adapter must matter"


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_an_adapter_on_integers_is_as_near_to_merged_weights_as_the_base_is(
    tmp_path: Path, kind: str
) -> None:
    """The base is off by its 8-bit activations; an adapter in 8 bits adds little to that."""
    quantized, exact = write_quantized(tmp_path, kind)
    runtime = with_adapters(start(quantized), tmp_path)
    own = start(exact, dtype="f32", lora=None)
    prompts = [PROMPT[:length] for length in (3, 9, 14, 24)]

    def error(slot: int, truth: CpuRuntime) -> float:
        ours = last_logits(runtime, [(prompt, slot) for prompt in prompts])
        theirs = last_logits(truth, [(prompt, NO_ADAPTER) for prompt in prompts])
        return float(np.sqrt(((ours - theirs) ** 2).mean() / (theirs**2).mean()))

    bare = error(NO_ADAPTER, own)
    assert 0 < bare < 0.06
    for slot, adapter in enumerate(draw_adapters(tmp_path)):
        merged = write_merged(exact, adapter, tmp_path / f"merged-{slot}")
        assert error(slot, start(merged, dtype="f32", lora=None)) < 2 * bare


@pytest.fixture(scope="module", params=["auto", "f32", "Q4_1", "int8 cache"])
def native(
    request: pytest.FixtureRequest, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CpuRuntime]:
    """float16, float32 and integer weights, and float16 weights with an int8 cache."""
    folder = tmp_path_factory.mktemp("native")
    if request.param == "Q4_1":
        runtime = start(write_quantized(folder, "Q4_1")[0])
    elif request.param == "int8 cache":
        runtime = start(base, kv_cache_dtype="int8")
    else:
        runtime = start(base, dtype=request.param)
    yield with_adapters(runtime, folder)
    runtime.close()


@pytest.fixture(scope="module")
def answers_alone(native: CpuRuntime) -> Outcome:
    answers = []
    for request, slot in zip(requests_over(VOCAB, 100), SLOTS, strict=True):
        poison(native)
        one = scheduler_of(native, prefix_caching=False)
        answers += generate(native, one, [request], [slot]).answers
    return Outcome(answers, [0] * len(answers), 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_mix_of_adapters_answers_as_each_request_alone(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), requests_over(VOCAB, 100), SLOTS)
    assert outcome.answers == answers_alone.answers
    assert ("preempted" in way) == (outcome.preemptions > 0)


def test_a_cached_prefix_is_one_of_the_same_adapter(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    poison(native)
    one = scheduler_of(native)
    requests = requests_over(VOCAB, 100)
    generate(native, one, requests, SLOTS)
    again = generate(native, one, requests, SLOTS)
    assert again.answers == answers_alone.answers
    full = [(len(request.prompt) - 1) // BLOCK * BLOCK for request in requests]
    assert again.cached_tokens == full
    moved = generate(native, one, requests, [NO_ADAPTER] * len(requests))
    others = [cached for cached, slot in zip(moved.cached_tokens, SLOTS, strict=True) if slot >= 0]
    assert moved.answers != answers_alone.answers
    assert max(others) < CONTEXT // 2, "what the base shares among its own requests is all there is"


def scores(runtime: CpuRuntime, slots: list[int], **options: Any) -> list[list[float]]:
    """The log-probabilities of one prompt by each of the adapters in `slots`."""
    one = scheduler_of(runtime, **options)
    for index, slot in enumerate(slots):
        new = NewSequence(
            str(index),
            token_ids=PROMPT,
            sampling=Sampling(),
            seed=0,
            max_tokens=0,
            prompt_logprobs=0,
            adapter=str(slot),
        )
        one.submit(new, adapter_slot=slot)
    found: list[list[float]] = [[] for _ in slots]
    while (plan := one.plan()) is not None:
        for progress in one.commit(runtime.execute(plan)):
            found[int(progress.id)] += [scored.logprob for scored in progress.scored]
    return found


def test_prompts_are_scored_by_their_own_adapters(native: CpuRuntime) -> None:
    slots = [2, NO_ADAPTER, 0, 1]
    alone = [scores(native, [slot])[0] for slot in slots]
    assert {len(one) for one in alone} == {len(PROMPT) - 1}
    assert len({tuple(one) for one in alone}) == 4
    assert scores(native, slots) == alone
    assert scores(native, slots, max_num_batched_tokens=13) == alone


def test_a_plan_with_adapters_gives_the_bits_of_its_calls(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    both = PlanAndCalls(native._backend)
    runtime = CpuRuntime(row_table_of(native), both, native.info, "")
    poison(runtime)
    outcome = generate(
        runtime, scheduler_of(runtime, max_num_batched_tokens=50), requests_over(VOCAB, 100), SLOTS
    )
    assert outcome.answers == answers_alone.answers
    assert both.steps > 20


def test_requests_without_adapters_take_the_plan_that_knows_none(
    base: Path, tmp_path: Path
) -> None:
    runtime = with_adapters(start(base), tmp_path)
    plain = start(base, lora=None)
    backend: Any = runtime._backend
    bare: Any = plain._backend
    assert backend._plan.num_steps == bare._plan.num_steps < backend._adapter_plan.num_steps
    requests = requests_over(VOCAB, 100)
    assert generate(runtime, scheduler_of(runtime), requests).answers == (
        generate(plain, scheduler_of(plain), requests).answers
    )
    used = backend._adapter_plan
    used.profiling = True
    generate(runtime, scheduler_of(runtime), requests)
    assert sum(calls for _, calls in used.profile().values()) == 0


def test_both_plans_share_one_arena(base: Path) -> None:
    backend: Any = start(base)._backend
    assert backend._plan.arena_bytes == backend._adapter_plan.arena_bytes
    assert "adapters" in start(base).report
    assert "adapters" not in start(base, lora=None).report
    assert settings("x").lora is not None
