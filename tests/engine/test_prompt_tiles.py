"""A model whose prompt tokens are multiplied in bf16 tiles answers alike however it is scheduled:
its generated tokens stay generated when they are computed again, and become a prompt only in the
next request. On machines or builds with tiles, emulated ones too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_base_models import ROWS, start, with_adapters, write_quantized
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

from penstock import _native
from penstock.dialog import Sampling
from penstock.kernels.isa.instruction_sets import TILES
from penstock.runtime import CpuRuntime
from penstock.runtime.row_table import RowTable
from penstock.scheduler import NO_ADAPTER
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

BLOCK = 16
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 50},
    "by twos": {"max_num_seqs": 2},
    "preempted": {"num_blocks": 8},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without prefix caching": {"prefix_caching": False},
    "without a cache": {"no_kv_cache": True},
    "speculating": {"speculation": True},
}
REQUESTS = requests_over(VOCAB, 100)
GREEDY = Sampling(temperature=0.0)


def tiles() -> str:
    found = [isa for isa in _native.supported_isas() if isa in TILES]
    if not found:
        pytest.skip("this machine or build has no ISA with tiles")
    return found[0]


@pytest.fixture(scope="module", params=["Q4_1", "Q8_0"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiles()
    quantized, _ = write_quantized(tmp_path_factory.mktemp("model"), request.param)
    return quantized


@pytest.fixture(scope="module")
def native(model: Path) -> Iterator[CpuRuntime]:
    runtime = start(model, lora=None, cpu_isa=tiles())
    assert runtime.info.tells_prompts_apart
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def answers_alone(native: CpuRuntime) -> Outcome:
    answers = []
    for request in REQUESTS:
        poison(native)
        scheduler = scheduler_of(native, prefix_caching=False)
        answers += generate(native, scheduler, [request]).answers
    return Outcome(answers, [0] * len(REQUESTS), 0)


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_alike_however_they_are_scheduled(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler_of(native, **WAYS[way]), REQUESTS)
    assert outcome.answers == answers_alone.answers
    assert ("preempted" in way) == (outcome.preemptions > 0)


def test_a_cached_prefix_changes_no_answer(native: CpuRuntime, answers_alone: Outcome) -> None:
    poison(native)
    scheduler = scheduler_of(native)
    generate(native, scheduler, REQUESTS)
    again = generate(native, scheduler, REQUESTS)
    assert again.answers == answers_alone.answers
    assert again.cached_tokens == [(len(one.prompt) - 1) // BLOCK * BLOCK for one in REQUESTS]


def test_a_recorded_plan_equals_its_kernel_calls(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    both = PlanAndCalls(native._backend)
    runtime = CpuRuntime(row_table_of(native), both, native.info, "")
    poison(runtime)
    outcome = generate(runtime, scheduler_of(runtime, max_num_batched_tokens=50), REQUESTS)
    assert outcome.answers == answers_alone.answers and both.steps > 20


def conversation(runtime: CpuRuntime, **options: Any) -> tuple[Request, Outcome, Outcome]:
    """Answer a question, then one that follows it in the same conversation. Return the second
    request, its outcome after the first one, and its outcome alone."""
    draw = np.random.default_rng(3)
    question, further = (tuple(draw.integers(0, VOCAB, count).tolist()) for count in (39, 11))
    poison(runtime)
    scheduler = scheduler_of(runtime, **options)
    first = generate(runtime, scheduler, [Request(question, 40, GREEDY)]).answers[0]
    answer = tuple(token for token, _, _ in first)
    second = Request((*question, *answer, *further), 12, GREEDY)
    continued = generate(runtime, scheduler, [second])
    poison(runtime)
    return second, continued, generate(runtime, scheduler_of(runtime, **options), [second])


def test_the_next_turn_of_a_conversation_equals_a_fresh_request(native: CpuRuntime) -> None:
    """The prompt of the first turn is found again, and its answer is computed as a prompt."""
    _, continued, fresh = conversation(native)
    assert continued.answers == fresh.answers
    assert (continued.cached_tokens, fresh.cached_tokens) == ([39 // BLOCK * BLOCK], [0])


def test_blocks_of_generated_tokens_would_change_the_next_turn(native: CpuRuntime) -> None:
    """A scheduler that does not tell prompts apart serves them, so that the test above can fail."""
    _, continued, fresh = conversation(native, tells_prompts_apart=False)
    assert continued.cached_tokens == [(39 + 40 - 1) // BLOCK * BLOCK]
    assert continued.answers != fresh.answers


def test_a_prompt_differs_from_the_same_tokens_generated(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    """Otherwise nothing here tests anything: rows that know no prompt compute other answers."""
    runtime = CpuRuntime(RowTable(ROWS, CONTEXT, BLOCK), native._backend, native.info, "")
    poison(runtime)
    answers = generate(runtime, scheduler_of(runtime), REQUESTS).answers
    assert answers != answers_alone.answers


def test_rows_with_adapters_answer_alike(model: Path, tmp_path: Path) -> None:
    runtime = with_adapters(start(model, cpu_isa=tiles()), tmp_path)
    slots = [NO_ADAPTER, 0, 1, NO_ADAPTER, 2, 1, 3, 0, 1]
    answers = []
    for request, slot in zip(REQUESTS, slots, strict=True):
        poison(runtime)
        scheduler = scheduler_of(runtime, prefix_caching=False)
        answers += generate(runtime, scheduler, [request], [slot]).answers
    for options in ({}, {"num_blocks": 7, "max_num_batched_tokens": 23}):
        poison(runtime)
        outcome = generate(runtime, scheduler_of(runtime, **options), REQUESTS, slots)
        assert outcome.answers == answers
    runtime.close()


def test_a_draft_model_changes_no_answer(tmp_path: Path) -> None:
    folder = write_small_llama(tmp_path / "small-llama")
    own = {"cpu_isa": tiles(), "quantization": "int8"}
    runtime = start(folder, lora=None, draft_model=str(folder), **own)
    assert runtime.info.tells_prompts_apart
    poison(runtime)
    expected = generate(runtime, scheduler_of(runtime, prefix_caching=False), REQUESTS).answers
    poison(runtime)
    scheduler = scheduler_of(runtime, speculation=True)
    for tokens in (1, 100):  # drafts pay
        scheduler._planner.prefill_budget.observe(tokens, (40 + tokens) / 1000)
    assert generate(runtime, scheduler, REQUESTS).answers == expected
    assert scheduler.gauges().draft_model_draft_tokens > 0
    runtime.close()
