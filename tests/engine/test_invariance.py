"""An answer does not depend on how it was computed: alone, in a batch, in chunks, after a
preemption, from a cached prefix or without a cache, token for token and bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from scheduled_requests import (
    Outcome,
    PlanAndCalls,
    Request,
    generate,
    poison,
    requests_over,
    row_table_of,
)

from penstock.base.errors import ModelError
from penstock.config import EngineSettings, read_environment
from penstock.dialog import Sampling
from penstock.models.hub.sources import files_at, resolve_model
from penstock.runtime import CpuRuntime, start_runtime
from penstock.scheduler import Scheduler
from tests.support.checkpoints.small_llama import CONTEXT, VOCAB, write_small_llama

BLOCK = 16
ROWS = 6

WAYS = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 5},
    "in larger chunks": {"max_num_batched_tokens": 50},
    "by twos": {"max_num_seqs": 2},
    "preempted": {"num_blocks": 8},
    "preempted and chunked": {"num_blocks": 7, "max_num_batched_tokens": 23},
    "without prefix caching": {"prefix_caching": False},
    "without a cache": {"no_kv_cache": True},
}


def scheduler(runtime: CpuRuntime, **options: int | bool) -> Scheduler:
    sizes: dict[str, int | bool] = {
        "num_blocks": runtime.info.cache_blocks,
        "block_size": BLOCK,
        "max_model_len": runtime.info.max_model_len,
        "max_num_seqs": ROWS,
        "max_num_batched_tokens": runtime.info.max_model_len,
        "tells_prompts_apart": runtime.info.tells_prompts_apart,
    }
    return Scheduler(**(sizes | options))  # type: ignore[arg-type]


def alone(runtime: CpuRuntime, requests: list[Request]) -> Outcome:
    """Return the answer to each request by itself, with an empty cache."""
    answers = []
    for request in requests:
        poison(runtime)
        answers += generate(runtime, scheduler(runtime, prefix_caching=False), [request]).answers
    return Outcome(answers, [0] * len(requests), 0)


def settings(model: str, **options: object) -> EngineSettings:
    """The largest step holds a whole context, so that one runtime serves every schedule."""
    return EngineSettings(
        model=model,
        max_model_len=CONTEXT,
        max_num_seqs=ROWS,
        max_num_batched_tokens=CONTEXT,
        block_size=BLOCK,
        threads=2,
        **options,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("model") / "small-llama")


KINDS = {"f16": {}, "f32": {"dtype": "f32"}, "int8": {"kv_cache_dtype": "int8"}}


@pytest.fixture(scope="module", params=KINDS)
def native(request: pytest.FixtureRequest, small_llama: Path) -> Iterator[CpuRuntime]:
    """A runtime with float16 weights and cache, float32 throughout, or float16 weights and an int8
    cache."""
    runtime = start_runtime(
        files_at(small_llama, "small-llama"), settings(str(small_llama), **KINDS[request.param])
    )
    yield runtime
    runtime.close()


@pytest.fixture(scope="module")
def answers_alone(native: CpuRuntime) -> Outcome:
    return alone(native, requests_over(VOCAB, 100))


@pytest.mark.parametrize("way", WAYS)
def test_a_small_llama_answers_alike_however_it_is_scheduled(
    native: CpuRuntime, answers_alone: Outcome, way: str
) -> None:
    poison(native)
    outcome = generate(native, scheduler(native, **WAYS[way]), requests_over(VOCAB, 100))
    assert outcome.answers == answers_alone.answers
    assert ("preempted" in way) == (outcome.preemptions > 0)


def test_a_cached_prefix_changes_no_answer(native: CpuRuntime, answers_alone: Outcome) -> None:
    poison(native)
    one = scheduler(native)
    requests = requests_over(VOCAB, 100)
    generate(native, one, requests)
    again = generate(native, one, requests)
    assert again.answers == answers_alone.answers
    assert again.cached_tokens == [
        (len(request.prompt) - 1) // BLOCK * BLOCK for request in requests
    ]


def test_choices_of_one_prompt_share_its_blocks_and_change_no_answer(native: CpuRuntime) -> None:
    prompt = requests_over(VOCAB, 100)[2].prompt
    choices = [Request(prompt, 20, Sampling(temperature=1.0), seed=seed) for seed in range(4)]
    right = alone(native, choices).answers
    assert len({tuple(token for token, _, _ in answer) for answer in right}) == len(choices)
    poison(native)
    outcome = generate(native, scheduler(native, max_num_batched_tokens=23), choices)
    assert outcome.answers == right
    assert sorted(outcome.cached_tokens) == [0, 96, 96, 96]


def test_a_recorded_plan_equals_its_kernel_calls(
    native: CpuRuntime, answers_alone: Outcome
) -> None:
    both = PlanAndCalls(native._backend)
    runtime = CpuRuntime(row_table_of(native), both, native.info, "")
    poison(runtime)
    outcome = generate(
        runtime, scheduler(runtime, max_num_batched_tokens=50), requests_over(VOCAB, 100)
    )
    assert outcome.answers == answers_alone.answers
    assert both.steps > 20


def test_answers_differ_between_requests(answers_alone: Outcome) -> None:
    heads = {tuple(token for token, _, _ in answer[:4]) for answer in answers_alone.answers}
    assert len(heads) == len(answers_alone.answers)


def test_the_reference_answers_the_same_up_to_rounding(small_llama: Path) -> None:
    """In float32 and greedy, because sampling with a temperature may fall on either side of a
    rounding error."""
    compare_with_the_reference(small_llama, 1e-3, dtype="f32")


def test_the_reference_with_an_int8_cache_answers_the_same_up_to_rounding(
    small_llama: Path,
) -> None:
    """A number close to a tie may be rounded to either side, by a 127th of the largest."""
    compare_with_the_reference(small_llama, 2e-2, dtype="f32", kv_cache_dtype="int8")


def compare_with_the_reference(small_llama: Path, most: float, **options: str) -> None:
    greedy = [r for r in requests_over(VOCAB, 100) if r.sampling.temperature == 0]
    outcomes = []
    for kernels in ("native", "reference"):
        given = settings(str(small_llama), kernel_backend=kernels, **options)
        runtime = start_runtime(files_at(small_llama, "small-llama"), given)
        poison(runtime)
        outcomes.append(generate(runtime, scheduler(runtime, max_num_batched_tokens=40), greedy))
        runtime.close()
    for answer, right in zip(outcomes[0].answers, outcomes[1].answers, strict=True):
        assert [token for token, _, _ in answer] == [token for token, _, _ in right]
        assert [logprob for _, logprob, _ in answer] == pytest.approx(
            [logprob for _, logprob, _ in right], abs=most
        )


@pytest.fixture(scope="module")
def default_model() -> Iterator[CpuRuntime]:
    name = EngineSettings().model
    try:
        files = resolve_model(name, read_environment().home)
    except ModelError as error:
        pytest.skip(f"the default model cannot be had: {error}")
    runtime = start_runtime(files, settings(name))
    yield runtime
    runtime.close()


@pytest.mark.slow
@pytest.mark.weights
def test_the_default_model_answers_alike_however_it_is_scheduled(default_model: CpuRuntime) -> None:
    requests = requests_over(default_model.info.vocab_size, 100)
    right = alone(default_model, requests).answers
    for way, options in WAYS.items():
        poison(default_model)
        outcome = generate(default_model, scheduler(default_model, **options), requests)
        assert outcome.answers == right, way
    one = scheduler(default_model)
    generate(default_model, one, requests)
    again = generate(default_model, one, requests)
    assert sum(again.cached_tokens) > 0
    assert again.answers == right
