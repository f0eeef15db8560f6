"""Drafts of the runtime's drafter are verified if they pay; answers do not change."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from fake_runtime import Harness, ScriptedGuide, answer_alone

from penstock.scheduler import MAX_DRAFT_TOKENS, Draft, StepResult
from penstock.scheduler.acceptance import best_length, rates_of_engine, speedup
from penstock.scheduler.drafting import Drafting
from penstock.scheduler.speculator import Speculator
from penstock.scheduler.types import Chunk

PROMPT = [*range(20), 3]


def drafting_harness(**options: object) -> Harness:
    defaults = {"speculation": True, "max_drafts": 8, "max_model_len": 400, "num_blocks": 200}
    return Harness(**(defaults | options))  # type: ignore[arg-type]


def run(harness: Harness) -> list[int]:
    """Run until all is done, with steps whose fixed time is ten tokens. Return the number of draft
    tokens that each step asked for."""
    asked = []
    while (plan := harness.scheduler.plan()) is not None:
        asked.append(sum(chunk.num_drafts for chunk in plan.chunks if chunk.samples))
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    return asked


def answer_of(harness: Harness, prompt: list[int], count: int) -> list[int]:
    harness.submit("a", prompt, count)
    run(harness)
    return harness.answers["a"]


@pytest.mark.parametrize("wrong_every", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("guided", [False, True])
def test_answers_do_not_depend_on_the_drafter(wrong_every: int, guided: bool) -> None:
    harness = drafting_harness(wrong_every=wrong_every, max_num_batched_tokens=64)
    prompts = [[seed, *range(seed % 4 + 2), 1] for seed in range(8)]

    def guide() -> ScriptedGuide | None:
        return ScriptedGuide((1, 2)) if guided else None

    for index, prompt in enumerate(prompts):
        harness.submit(f"r{index}", prompt, 40 + index, frozenset({49}), guide=guide())
    run(harness)
    for index, prompt in enumerate(prompts):
        right = answer_alone(prompt, 40 + index, frozenset({49}), guide())
        assert harness.answers[f"r{index}"] == right


def test_right_drafts_need_fewer_steps() -> None:
    harness = drafting_harness()
    harness.submit("a", PROMPT, 120)
    assert len(run(harness)) < 40
    gauges = harness.scheduler.gauges()
    assert gauges.draft_model_accepted_tokens == gauges.draft_model_draft_tokens > 80
    assert gauges.ngram_draft_tokens + gauges.draft_model_draft_tokens == gauges.draft_tokens
    assert gauges.draft_seconds > 0.0


def test_wrong_drafts_are_turned_off_except_for_probes() -> None:
    harness = drafting_harness(wrong_every=1)
    harness.submit("a", PROMPT, 300)
    asked = run(harness)
    assert 0 < sum(map(bool, asked[:20])) <= 12
    assert 1 <= sum(map(bool, asked[50:])) <= 8
    assert max(asked[50:]) == 1


def test_drafts_are_turned_on_again_when_they_become_right() -> None:
    harness = drafting_harness(wrong_every=1, max_model_len=800)
    harness.submit("a", PROMPT, 100)
    harness.submit("b", PROMPT, 700)
    while len(harness.answers["b"]) < 150:
        plan = harness.scheduler.plan()
        assert plan is not None
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    harness.drafter.wrong_every = 0
    assert max(run(harness)[-20:]) > 1


def test_a_drafter_that_costs_more_than_it_gains_is_turned_off() -> None:
    harness = drafting_harness()
    harness.drafter.token_s = 0.05
    harness.submit("a", PROMPT, 200)
    asked = run(harness)
    assert sum(map(bool, asked[20:])) <= 6


def test_other_texts_start_with_the_rates_of_earlier_ones() -> None:
    harness = drafting_harness(wrong_every=1)
    answer_of(harness, PROMPT, 300)
    harness.submit("b", [9, 8, 7, 6], 30)
    assert sum(run(harness)) <= 4


def test_drafts_share_the_draft_tokens_of_a_step() -> None:
    harness = drafting_harness(max_num_seqs=4, max_num_batched_tokens=24)
    for index in range(4):
        harness.submit(f"r{index}", [*range(12), index], 60)
    rows: set[int] = set()
    while (plan := harness.scheduler.plan()) is not None:
        assert plan.num_tokens <= 24
        assert sum(len(chunk.draft_tokens) for chunk in plan.chunks) <= MAX_DRAFT_TOKENS
        assert sum(chunk.num_drafts for chunk in plan.chunks if chunk.samples) <= MAX_DRAFT_TOKENS
        rows |= {chunk.row for chunk in plan.chunks if chunk.draft_tokens}
        harness.commit(plan, 0.020 + 0.001 * plan.num_tokens)
    assert rows == {0, 1, 2, 3}


def test_copied_text_is_preferred_to_a_bad_drafter() -> None:
    harness = drafting_harness(wrong_every=2)
    harness.runtime.next_token = lambda before: (before + 1) % 10
    answer_of(harness, [*range(10), *range(10)], 200)
    gauges = harness.scheduler.gauges()
    assert gauges.ngram_accepted_tokens > 5 * gauges.draft_model_accepted_tokens


def test_chunks_of_a_prompt_tell_the_drafter_that_drafts_will_follow() -> None:
    harness = drafting_harness(max_num_batched_tokens=16)
    answer_of(harness, PROMPT, 20)
    harness.submit("b", [5, *range(30)], 4)
    plan = harness.scheduler.plan()
    assert plan is not None and not plan.chunks[0].samples and plan.chunks[0].num_drafts > 0


def test_no_drafts_are_asked_for_near_the_end_of_an_answer() -> None:
    harness = drafting_harness()
    answer_of(harness, PROMPT, 60)
    harness.submit("b", PROMPT, 3)
    while (plan := harness.scheduler.plan()) is not None:
        for chunk in plan.chunks:
            assert chunk.start + chunk.length + 1 + chunk.num_drafts < len(PROMPT) + 3
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)


def speculator_with(drafts: tuple[int, ...], tokens: array[int], after: int) -> Speculator:
    speculator = Speculator(Drafting("mtp", 8))
    speculator.keep(drafts, tokens, after)
    return speculator


def test_forced_tokens_shorten_drafts_that_agree_with_them() -> None:
    tokens = array("i", [1, 2, 3, 7, 8])
    assert speculator_with((7, 8, 9, 4), tokens, 3).propose(tokens, 9, 0.1) == (9, 4)
    assert speculator_with((7, 9, 9, 4), tokens, 3).propose(tokens, 9, 0.1) == ()
    assert speculator_with((7,), tokens, 3).propose(tokens, 9, 0.1) == ()


def test_drafts_are_dropped_after_another_token() -> None:
    tokens = array("i", [1, 2, 3])
    speculator = speculator_with((4, 5), tokens, 3)
    tokens.append(4)
    assert speculator.propose(tokens, 9, 0.1) == ()


def test_rates_are_measured_by_distance() -> None:
    rates = rates_of_engine(4)
    for _ in range(200):
        rates.learn(3, 1)
    first, second = rates.rate(0), rates.rate(1)
    assert first > 0.95 and second < 0.05
    assert rates.rate(2) == pytest.approx(second, abs=0.01), "never reached: like the one before"


@pytest.mark.parametrize(
    ("probabilities", "cost", "length"),
    [([0.9, 0.8, 0.7], 0.1, 3), ([0.9, 0.8, 0.1], 0.3, 2), ([0.5, 0.4], 0.6, 0), ([], 0.1, 0)],
)
def test_the_length_of_a_draft_has_the_greatest_speedup(
    probabilities: list[float], cost: float, length: int
) -> None:
    assert best_length(probabilities, cost) == length
    best = speedup(probabilities[:length], cost)
    assert all(speedup(probabilities[:n], cost) <= max(best, 1.05) for n in range(4))


def test_time_per_draft_token_is_measured_by_number_of_rows_without_prompts() -> None:
    drafting = Drafting("draft_model", 4)
    assert drafting.token_s(3) == 0.0

    def measure(rows: int, seconds: float, length: int = 1) -> None:
        chunks = [Chunk(row, 0, length, True, num_drafts=2) for row in range(rows)]
        drafts = tuple(Draft(row, (1, 2)) for row in range(rows))
        drafting.measure(chunks, StepResult(1, (), drafts=drafts, draft_s=seconds))

    measure(1, 9.0, length=100)
    assert drafting.token_s(1) == 0.0
    measure(1, 0.02)
    measure(8, 0.04)
    assert drafting.token_s(1) == pytest.approx(0.01)
    assert drafting.token_s(2) == pytest.approx(0.01)
    assert drafting.token_s(9) == pytest.approx(0.0025)
    measure(1, 50.0)
    assert drafting.token_s(1) < 0.015


def test_steps_in_which_the_drafter_catches_up_do_not_count_as_the_time_of_drafts() -> None:
    """The drafter needs 1 ms for each token of the prompt, which is computed before its costs are
    known."""
    harness = drafting_harness(max_num_batched_tokens=400)
    harness.submit("a", [*range(300)], 90)
    propose, behind = harness.drafter.propose, 300

    def slow(*arguments: Any) -> Draft:
        nonlocal behind
        harness.drafter.token_s, behind = 0.0001 + 0.001 * behind, 0
        return propose(*arguments)

    harness.drafter.propose = slow  # type: ignore[method-assign]
    run(harness)
    assert harness.scheduler.gauges().draft_model_accepted_tokens > 40
    assert harness.scheduler.gauges().draft_seconds > 0.3
