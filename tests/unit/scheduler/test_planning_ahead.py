"""A step planned before the one in flight is committed."""

from __future__ import annotations

import pytest
from scheduler_fakes import Harness, answer_alone

from penstock.dialog import Sampling
from penstock.scheduler import NewSequence, StepPlan, StepResult

PROMPT = [3, 1, 4, 1, 5]


def start(harness: Harness) -> StepResult:
    """The first step, executed and not committed."""
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
    assert steps == 4  # one more than the three draws
    assert harness.scheduler.has_work, "its blocks are still written to"
    harness.take(result)
    assert not harness.scheduler.has_work
    assert harness.scheduler.gauges().kv_cache_blocks_used == 0


def test_the_last_token_of_an_answer_is_known_ahead() -> None:
    harness = Harness()
    harness.submit("short", PROMPT, 1)
    harness.submit("long", PROMPT[1:], 5)
    result = start(harness)
    assert [chunk.row for chunk in ahead(harness).chunks] == [result.drawn[1].row]


def test_what_was_computed_for_nothing_is_not_found_by_others() -> None:
    """The sequence would have filled its second block with the token that nobody wanted."""
    answer = answer_alone(PROMPT, 9, frozenset())
    harness = Harness(block_tokens=3)
    harness.submit("a", PROMPT, 9, stops=frozenset({answer[0]}))
    result = start(harness)
    following = harness.runtime.execute(ahead(harness))
    harness.take(result)
    harness.take(following)
    harness.submit("b", [*PROMPT, answer[0], 9], 1)
    harness.run()
    assert harness.cached["b"] == 3


def test_a_request_that_could_join_is_waited_for() -> None:
    harness = Harness(max_seqs=2)
    harness.submit("a", PROMPT)
    start(harness)
    harness.submit("b", PROMPT)
    assert harness.scheduler.plan_ahead() is None


def test_one_that_has_no_row_yet_is_not() -> None:
    harness = Harness(max_seqs=1)
    harness.submit("a", PROMPT)
    harness.submit("b", PROMPT)
    start(harness)
    assert len(ahead(harness).chunks) == 1


def test_an_unfinished_prompt_is_waited_for() -> None:
    harness = Harness(token_budget=4)
    harness.submit("a", PROMPT)
    start(harness)
    assert harness.scheduler.plan_ahead() is None


@pytest.mark.parametrize("penalty", ["presence_penalty", "repetition_penalty", "dry_multiplier"])
def test_draws_that_depend_on_the_last_token_are_waited_for(penalty: str) -> None:
    harness = Harness()
    sampling = Sampling(**{penalty: 1.5})
    harness.scheduler.submit(NewSequence("a", tuple(PROMPT), sampling, seed=0, max_tokens=4))
    start(harness)
    assert harness.scheduler.plan_ahead() is None


def test_without_a_block_for_each_nothing_is_planned_ahead() -> None:
    harness = Harness(num_blocks=3, block_tokens=3, max_seqs=2)
    for id in ("a", "b"):
        harness.submit(id, [ord(id) % 9, 1, 2], 4)
    start(harness)
    assert harness.scheduler.plan_ahead() is None
    assert harness.scheduler.gauges().kv_cache_blocks_used == 2


def test_an_aborted_request_gives_its_row_back_after_both_steps() -> None:
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
