"""A step planned before the one in flight is committed."""

from __future__ import annotations

from typing import Any

import pytest
from fake_runtime import Harness, ScriptedGuide, answer_alone

from penstock.dialog import Sampling
from penstock.scheduler import (
    MAX_LOGIT_BIASES,
    MAX_SUPPRESSED_TOKENS,
    NewSequence,
    StepPlan,
    StepResult,
)

PROMPT = [3, 1, 4, 1, 5]


class IdleGuide(ScriptedGuide):
    """A guide that does not constrain the next tokens."""

    idle = True

    def accept(self, token_id: int) -> bool:
        return True


def start(harness: Harness) -> StepResult:
    """Execute the first step without committing it."""
    plan = harness.scheduler.plan()
    assert plan is not None
    return harness.runtime.execute(plan)


def ahead(harness: Harness) -> StepPlan:
    plan = harness.scheduler.plan_ahead()
    assert plan is not None
    return plan


def test_a_token_that_ends_an_answer_is_seen_one_step_late() -> None:
    answer = answer_alone(PROMPT, 9, frozenset())
    harness = Harness()
    harness.submit("a", PROMPT, 9, stops=frozenset({answer[2]}))
    result, steps = start(harness), 1
    while not harness.finishes:
        following = harness.runtime.execute(ahead(harness))
        harness.take(result)
        result, steps = following, steps + 1
    assert (harness.answers["a"], harness.finishes["a"]) == (answer[:2], "stop")
    assert steps == 4  # one more than the three sampled tokens
    assert harness.scheduler.has_work, "its blocks are still written to"
    harness.take(result)
    assert not harness.scheduler.has_work
    assert harness.scheduler.gauges().kv_cache_blocks_used == 0


def test_the_last_token_of_an_answer_is_known_ahead() -> None:
    harness = Harness()
    harness.submit("short", PROMPT, 1)
    harness.submit("long", PROMPT[1:], 5)
    result = start(harness)
    assert [chunk.row for chunk in ahead(harness).chunks] == [result.sampled[1].row]


def test_a_block_computed_in_vain_is_not_found_by_others() -> None:
    """The unused token would have filled the second block of the sequence."""
    answer = answer_alone(PROMPT, 9, frozenset())
    harness = Harness(block_size=3)
    harness.submit("a", PROMPT, 9, stops=frozenset({answer[0]}))
    result = start(harness)
    following = harness.runtime.execute(ahead(harness))
    harness.take(result)
    harness.take(following)
    harness.submit("b", [*PROMPT, answer[0], 9], 1)
    harness.run()
    assert harness.cached["b"] == 3


def test_a_request_that_arrives_meanwhile_joins_the_step_planned_ahead() -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("a", PROMPT)
    result = start(harness)
    harness.submit("b", PROMPT[:3])
    plan = ahead(harness)
    assert [admit.token_ids for admit in plan.admissions] == [tuple(PROMPT[:3])]
    assert spans(plan) == [(5, 1, True), (0, 3, True)]
    following = harness.runtime.execute(plan)
    harness.take(result)
    harness.take(following)
    harness.run()
    assert harness.answers["b"] == answer_alone(PROMPT[:3], 8, frozenset())


def test_a_released_row_gets_its_next_sequence_in_a_step_planned_ahead() -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("long", PROMPT, 20)
    for id in ("first", "second", "third"):
        harness.submit(id, [*PROMPT, ord(id[0]) % 9], 3)
    steps, planned_ahead = run_ahead(harness)
    assert planned_ahead == steps - 1
    for id in ("first", "second", "third"):
        assert harness.answers[id] == answer_alone([*PROMPT, ord(id[0]) % 9], 3, frozenset())


def test_after_the_last_token_of_all_a_waiting_request_is_planned_ahead() -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("a", PROMPT, 1)
    start(harness)
    harness.submit("b", [9, *PROMPT])
    assert spans(ahead(harness)) == [(0, 6, True)]


def test_a_request_waits_for_a_prefix_that_the_step_in_flight_computes() -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("a", PROMPT * 2)
    result = start(harness)
    harness.submit("b", [*PROMPT, *PROMPT, 7])
    following = harness.runtime.execute(ahead(harness))
    harness.take(result)
    assert len(ahead(harness).admissions) == 1
    harness.take(following)
    assert harness.scheduler.gauges().prefix_cache_hits == 1


def test_a_short_prompt_that_arrives_meanwhile_passes_a_long_one() -> None:
    harness = Harness(max_num_batched_tokens=40, max_model_len=1024, num_blocks=512)
    harness.submit("long", PROMPT * 100, 1)
    result = start(harness)
    harness.submit("short", [9, 9, 9], 1)
    plan = ahead(harness)
    assert [admit.token_ids for admit in plan.admissions] == [(9, 9, 9)]
    assert spans(plan) == [(0, 3, True), (40, 37, False)]
    following = harness.runtime.execute(plan)
    harness.take(result)
    harness.take(following)
    assert list(harness.finishes) == ["short"]
    harness.run()
    assert harness.answers["long"] == answer_alone(PROMPT * 100, 1, frozenset())


def test_a_request_whose_guide_is_idle_joins_a_step_planned_ahead() -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("a", PROMPT)
    start(harness)
    harness.submit("b", PROMPT[:3], guide=IdleGuide())
    assert len(ahead(harness).admissions) == 1


@pytest.mark.parametrize("wanted", [{"guide": ScriptedGuide()}, {"prompt_logprobs": 0}])
def test_a_request_that_the_cpu_samples_joins_no_step_planned_ahead(
    wanted: dict[str, Any],
) -> None:
    harness = Harness(max_num_seqs=2)
    harness.submit("a", PROMPT)
    start(harness)
    harness.submit("b", PROMPT, **wanted)
    assert harness.scheduler.plan_ahead() is None


def test_a_request_without_a_free_row_does_not_join() -> None:
    harness = Harness(max_num_seqs=1)
    harness.submit("a", PROMPT)
    harness.submit("b", PROMPT)
    start(harness)
    assert len(ahead(harness).chunks) == 1


def spans(plan: StepPlan) -> list[tuple[int, int, bool]]:
    return [(chunk.start, chunk.length, chunk.samples) for chunk in plan.chunks]


def run_ahead(harness: Harness) -> tuple[int, int]:
    """Run all requests to their end and plan ahead if possible. Return the number of steps and how
    many of them were planned ahead."""
    steps = planned_ahead = 0
    result = None
    while result is not None or harness.scheduler.has_work:
        if result is None:
            result, steps = start(harness), steps + 1
        plan = harness.scheduler.plan_ahead()
        following = None if plan is None else harness.runtime.execute(plan)
        harness.take(result)
        result = following
        steps += plan is not None
        planned_ahead += plan is not None
    return steps, planned_ahead


def test_the_next_prefill_chunk_is_planned_ahead() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.submit("a", [*PROMPT, *PROMPT], 3)
    result = start(harness)
    for expected in ((4, 4, False), (8, 2, True), (10, 1, True), (11, 1, True)):
        plan = ahead(harness)
        assert spans(plan) == [expected]
        following = harness.runtime.execute(plan)
        harness.take(result)
        result = following
    harness.take(result)
    assert harness.answers["a"] == answer_alone([*PROMPT, *PROMPT], 3, frozenset())


def test_prefill_beside_decodes_is_planned_ahead_and_changes_no_answer() -> None:
    harness = Harness(max_num_batched_tokens=8)
    prompts = {"a": PROMPT, "b": [7, 3] * 15}
    for id, prompt in prompts.items():
        harness.submit(id, prompt, 20)
    steps, planned_ahead = run_ahead(harness)
    assert planned_ahead == steps - 1
    for id, prompt in prompts.items():
        assert harness.answers[id] == answer_alone(prompt, 20, frozenset())


def test_an_aborted_prompt_gets_no_further_chunk() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("short", PROMPT)
    harness.submit("long", PROMPT * 3)
    result = start(harness)
    assert harness.scheduler.abort("long")
    assert [chunk.row for chunk in ahead(harness).chunks] == [result.sampled[0].row]


def test_no_step_is_planned_ahead_of_a_guided_prompt_that_may_sample() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.submit("a", PROMPT * 2, guide=ScriptedGuide())
    result = start(harness)
    following = ahead(harness)
    assert spans(following) == [(4, 4, False)]
    harness.take(result)
    assert harness.scheduler.plan_ahead() is None


def test_prefills_and_decodes_with_idle_guides_are_planned_ahead() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.submit("a", PROMPT * 2, guide=IdleGuide())
    steps, planned_ahead = run_ahead(harness)
    assert planned_ahead == steps - 1
    assert harness.answers["a"] == answer_alone(PROMPT * 2, 8, frozenset())


def test_a_prompt_with_max_tokens_0_ends_with_its_last_chunk() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("empty", PROMPT, 0)
    harness.submit("long", [9, *PROMPT * 3], 2)
    steps, planned_ahead = run_ahead(harness)
    assert planned_ahead == steps - 1
    assert harness.answers == {"empty": [], "long": answer_alone([9, *PROMPT * 3], 2, frozenset())}


def test_a_short_prompt_passes_a_long_one_in_steps_planned_ahead() -> None:
    """Both are running when the second step is planned."""
    harness = Harness(max_num_batched_tokens=40, max_model_len=1024, num_blocks=512)
    harness.submit("long", PROMPT * 100, 1)
    harness.submit("short", [9, 9, 9], 1)
    result = start(harness)
    while "short" not in harness.finishes:
        following = harness.runtime.execute(ahead(harness))
        harness.take(result)
        result = following
    assert "long" not in harness.finishes
    harness.take(result)
    harness.run()
    assert harness.answers["long"] == answer_alone(PROMPT * 100, 1, frozenset())


def test_no_step_is_planned_ahead_of_prompt_log_probabilities() -> None:
    harness = Harness(max_num_batched_tokens=4)
    harness.submit("a", PROMPT, prompt_logprobs=0)
    start(harness)
    assert harness.scheduler.plan_ahead() is None


def started_with(sampling: Sampling, **wanted: Any) -> Harness:
    harness = Harness()
    new = NewSequence("a", tuple(PROMPT), sampling, seed=0, max_tokens=4, **wanted)
    harness.scheduler.submit(new)
    start(harness)
    return harness


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(presence_penalty=1.5, frequency_penalty=0.5),
        Sampling(repetition_penalty=1.5),
        Sampling(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES), 1.0)),
    ],
)
def test_steps_that_the_device_samples_are_planned_ahead(sampling: Sampling) -> None:
    assert spans(ahead(started_with(sampling))) == [(5, 1, True)]


def test_steps_with_suppressed_tokens_are_planned_ahead() -> None:
    some = frozenset(range(MAX_SUPPRESSED_TOKENS))
    harness = started_with(Sampling(), min_tokens=3, stop_token_ids=some)
    assert spans(ahead(harness)) == [(5, 1, True)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(dry_multiplier=1.5),
        Sampling(logit_bias=dict.fromkeys(range(MAX_LOGIT_BIASES + 1), 1.0)),
    ],
)
def test_steps_that_the_cpu_samples_are_not_planned_ahead(sampling: Sampling) -> None:
    assert started_with(sampling).scheduler.plan_ahead() is None


def test_steps_with_too_many_suppressed_tokens_are_not_planned_ahead() -> None:
    many = frozenset(range(MAX_SUPPRESSED_TOKENS + 1))
    harness = started_with(Sampling(), min_tokens=3, stop_token_ids=many)
    assert harness.scheduler.plan_ahead() is None
    assert started_with(Sampling(), stop_token_ids=many).scheduler.plan_ahead() is not None


def test_an_admission_contains_the_suppressed_tokens_and_their_limit() -> None:
    harness = Harness()
    stops = frozenset({9, 2})
    for id, min_tokens in (("a", 3), ("b", 0)):
        new = NewSequence(id, (1, 2, 3), Sampling(), 0, 5, min_tokens, stops)
        harness.scheduler.submit(new)
    plan = harness.scheduler.plan()
    assert plan is not None
    suppressing, free = plan.admissions
    assert (suppressing.suppressed_tokens, suppressing.suppressed_until) == ((2, 9), 6)
    assert free.suppressed_tokens == ()


def test_no_step_is_planned_ahead_without_a_block_for_each_row() -> None:
    harness = Harness(num_blocks=3, block_size=3, max_num_seqs=2)
    for id in ("a", "b"):
        harness.submit(id, [ord(id) % 9, 1, 2], 4)
    start(harness)
    assert harness.scheduler.plan_ahead() is None
    assert harness.scheduler.gauges().kv_cache_blocks_used == 2


def test_the_row_of_an_aborted_request_is_released_after_both_steps() -> None:
    harness = Harness()
    harness.submit("a", PROMPT)
    result = start(harness)
    following = harness.runtime.execute(ahead(harness))
    assert harness.scheduler.abort("a")
    harness.take(result)
    assert harness.scheduler.gauges().kv_cache_blocks_used == 2
    harness.take(following)
    assert harness.scheduler.gauges().kv_cache_blocks_used == 0
    assert harness.answers["a"] == []


@pytest.mark.parametrize(("free", "planned"), [(1, False), (2, True)])
def test_steps_of_a_few_guided_sequences_are_planned_ahead(free: int, planned: bool) -> None:
    """A step planned ahead samples the tokens that another step would force."""
    harness = Harness(max_num_seqs=4)
    for n in range(free):
        harness.submit(f"free {n}", [*PROMPT, n], 20)
    opening = (9, 4)
    harness.submit("guided", PROMPT[:2], 12, guide=ScriptedGuide(opening))
    start_of = harness.scheduler.plan()
    assert start_of is not None
    result = harness.runtime.execute(start_of)
    assert (harness.scheduler.plan_ahead() is not None) == planned
    if planned:
        assert harness.scheduler.masks_need_commit
        return
    harness.take(result)
    run_ahead(harness)
    expected = answer_alone(PROMPT[:2], 12, frozenset(), ScriptedGuide(opening))
    assert harness.answers["guided"] == expected


def test_guided_answers_beside_free_ones_equal_those_alone() -> None:
    """The free ones end first, so that the steps go from planned ahead to waiting."""
    harness = Harness(max_num_seqs=9, num_blocks=128)
    for n in range(6):
        harness.submit(f"free {n}", [*PROMPT, n], 3 + n)
    for n in range(3):
        harness.submit(f"guided {n}", [n, *PROMPT], 40, guide=ScriptedGuide((n, 4)))
    steps, planned_ahead = run_ahead(harness)
    assert 0 < planned_ahead < steps - 1
    for n in range(3):
        expected = answer_alone([n, *PROMPT], 40, frozenset(), ScriptedGuide((n, 4)))
        assert harness.answers[f"guided {n}"] == expected
