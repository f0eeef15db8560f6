"""A model with recurrent layers behind the engine's parts: its answers do not depend on how they
were computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lora_base_models import ROWS, settings, start
from scheduled_requests import (
    Outcome,
    PlanAndCalls,
    Request,
    generate,
    poison,
    requests_over,
    row_table_of,
    scheduler_of,
)

from penstock.dialog import Sampling
from penstock.engine.core import EngineCore
from penstock.runtime import CpuRuntime
from penstock.runtime.memory import plan_memory
from penstock.runtime.state_memory import SNAPSHOTS_PER_ROW
from penstock.runtime.state_rows import StateTable
from tests.support.checkpoints.small_hybrid import VOCAB, write_small_hybrid

WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 50},
    "preempted and chunked": {"num_blocks": 10, "max_num_batched_tokens": 23},
    "with one snapshot": {"state_snapshots": 1, "max_num_batched_tokens": 50},
    "without snapshots": {"state_snapshots": 0},
    "with drafts": {"speculation": True},
    "without a cache": {"no_kv_cache": True},
}
REQUESTS = [
    *requests_over(VOCAB, 100),
    # Draws between two tokens, so that drafts are proposed, accepted and rejected.
    Request(tuple(range(20)), 40, Sampling(temperature=1.0, logit_bias={3: 50.0, 5: 50.0})),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_hybrid(tmp_path_factory.mktemp("model") / "small-hybrid")


@pytest.fixture(scope="module", params=["auto", "int8"])
def native(request: pytest.FixtureRequest, base: Path) -> Iterator[CpuRuntime]:
    """A runtime whose attention has a float16 or an int8 cache."""
    runtime = start(base, lora=None, speculative_algorithm="ngram", kv_cache_dtype=request.param)
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def answers_alone(native: CpuRuntime) -> Outcome:
    return alone(native, REQUESTS)


def alone(runtime: CpuRuntime, requests: list[Request]) -> Outcome:
    answers = []
    for request in requests:
        poison(runtime)
        answers += generate(runtime, scheduler_of(runtime, prefix_caching=False), [request]).answers
    return Outcome(answers, [], 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_recurrent_model_answers_the_same_in_every_way(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    scheduler = scheduler_of(native, **WAYS[way])
    for tokens in (1, 100):  # a token costs little, so that drafts pay
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    for _ in range(2):  # the second time from the snapshots of the first
        outcome = generate(native, scheduler, REQUESTS)
        assert outcome.answers == answers_alone.answers
    gauges = scheduler.gauges()
    assert (gauges.state_snapshot_restores > 0) == (gauges.state_snapshots_total > 0)
    assert (gauges.preemptions > 0) == (way == "preempted and chunked")
    assert (gauges.accepted_tokens > 0) == (way == "with drafts")
    assert (gauges.draft_tokens > gauges.accepted_tokens) == (way == "with drafts")


def test_the_plan_of_a_recurrent_model_gives_the_bits_of_its_calls(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    both = PlanAndCalls(native._backend)
    rows = row_table_of(native, states=StateTable(ROWS))
    runtime = CpuRuntime(rows, both, native.info, "")
    poison(runtime)
    scheduler = scheduler_of(runtime, max_num_batched_tokens=50)
    outcome = generate(runtime, scheduler, REQUESTS)
    assert outcome.answers == answers_alone.answers
    assert both.steps > 20


def test_the_reference_answers_the_same_in_chunks_up_to_rounding(base: Path) -> None:
    runtime = start(base, lora=None, kernel_backend="reference")
    requests = [replace(one, max_tokens=4) for one in requests_over(VOCAB, 36)[2:6]]
    expected = alone(runtime, requests).answers
    poison(runtime)
    scheduler = scheduler_of(runtime, num_blocks=5, max_num_batched_tokens=23)
    for _ in range(2):
        answers = generate(runtime, scheduler, requests).answers
        for answer, other in zip(answers, expected, strict=True):
            assert [token for token, *_ in answer] == [token for token, *_ in other]
            logprobs = [[logprob for _, logprob, _ in one] for one in (answer, other)]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-3)
    assert scheduler.gauges().state_snapshot_restores > 4
    runtime.close()


def test_an_engine_has_the_snapshots_of_the_memory_formula(native: CpuRuntime) -> None:
    used = settings("", lora=None, speculative_algorithm="ngram")
    spec = native._backend._decoder.spec  # type: ignore[attr-defined]
    plan = plan_memory(spec, native.info.weight_bytes, used, None)
    gauges = EngineCore.for_runtime(native, used).gauges()
    assert gauges.state_snapshots_total == plan.states.snapshots == SNAPSHOTS_PER_ROW * ROWS
    assert "recurrent states (6 sequences x" in native.report
    assert native._backend.buffer_bytes <= plan.buffer_bytes
