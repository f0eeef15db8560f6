"""Prompt log-probabilities: each prompt token is reported once, in order."""

from __future__ import annotations

from fake_runtime import Harness, answer_alone, scores_alone
from msgspec.structs import replace

from penstock.scheduler import MAX_DRAFT_TOKENS

PROMPT = [index * 7 % 50 for index in range(60)]


def scored(harness: Harness, id: str, prompt: list[int], max_tokens: int = 8) -> None:
    harness.submit(id, prompt, max_tokens, prompt_logprobs=0)


def expect(harness: Harness, id: str, prompt: list[int], max_tokens: int = 8) -> None:
    assert harness.scores[id] == scores_alone(prompt)
    assert harness.answers[id] == answer_alone(prompt, max_tokens, frozenset())
    assert harness.finishes[id] == "length"


def test_a_long_prompt_uses_at_most_the_logits_rows_of_a_step() -> None:
    harness = Harness(max_num_seqs=2, max_num_batched_tokens=64)
    scored(harness, "a", PROMPT)
    harness.submit("b", PROMPT[:5])
    counts = []
    while (plan := harness.step()) is not None:
        counts.append(sum(chunk.num_scores for chunk in plan.chunks))
    assert sum(counts) == len(PROMPT) - 1
    assert max(counts) == MAX_DRAFT_TOKENS
    expect(harness, "a", PROMPT)
    assert harness.answers["b"] == answer_alone(PROMPT[:5], 8, frozenset())


def test_a_cached_prefix_is_computed_again_for_its_scores() -> None:
    harness = Harness()
    harness.submit("first", PROMPT)
    harness.run()
    scored(harness, "scored", PROMPT)
    harness.submit("plain", PROMPT)
    harness.run()
    expect(harness, "scored", PROMPT)
    assert harness.cached == {"first": 0, "scored": 0, "plain": 56}


def test_scores_of_a_preempted_prompt_are_reported_once() -> None:
    harness = Harness(num_blocks=16, block_size=4, max_model_len=60, max_num_seqs=2)
    harness.submit("old", PROMPT[::-1][:6], 40)
    scored(harness, "new", PROMPT[:40], 12)
    harness.run()
    assert harness.scheduler.gauges().preemptions > 0
    expect(harness, "new", PROMPT[:40], 12)


def test_without_a_cache_a_prompt_is_scored_by_several_whole_steps() -> None:
    harness = Harness(no_kv_cache=True, max_num_seqs=2)
    scored(harness, "a", PROMPT, 3)
    scored(harness, "b", PROMPT[:9], 3)
    harness.run()
    expect(harness, "a", PROMPT, 3)
    expect(harness, "b", PROMPT[:9], 3)


def test_a_prompt_with_max_tokens_0_is_scored_without_sampling() -> None:
    harness = Harness(max_model_len=60)
    scored(harness, "a", PROMPT, 0)
    harness.submit("b", PROMPT[:20], 0)
    scored(harness, "c", PROMPT[:1], 0)
    harness.run()
    expect(harness, "a", PROMPT, 0)
    assert harness.scores["b"] == harness.scores["c"] == []
    assert set(harness.finishes.values()) == {"length"}
    assert not any(harness.answers.values())
    assert harness.scheduler.gauges().completed_length == 3
    assert harness.scheduler.gauges().forced_tokens == 0


def test_scores_have_priority_over_draft_tokens() -> None:
    harness = Harness(
        speculation=True, max_num_batched_tokens=64, max_num_seqs=2, max_model_len=128
    )
    harness.runtime.next_token = lambda before: (before + 1) % 5
    harness.submit("repeats", [0, 1, 2, 3, 4] * 4, 80)
    for _ in range(60):
        plan = harness.scheduler.plan()
        assert plan is not None
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
        if any(chunk.draft_tokens for chunk in plan.chunks):
            break
    else:
        raise AssertionError("no draft was proposed")
    scored(harness, "scored", PROMPT, 0)
    while "scored" not in harness.finishes:
        plan = harness.scheduler.plan()
        assert plan is not None
        assert not any(chunk.draft_tokens for chunk in plan.chunks)
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    assert harness.scores["scored"] == scores_alone(PROMPT)


def test_a_prompt_without_finite_scores_fails_only_its_request() -> None:
    harness = Harness()
    scored(harness, "bad", PROMPT)
    harness.submit("good", [1, 2, 3])
    plan = harness.scheduler.plan()
    assert plan is not None
    result = harness.runtime.execute(plan)
    broken = tuple(replace(one, logprob=float("nan")) for one in result.scored)
    progress = harness.scheduler.commit(replace(result, scored=broken))
    assert {one.id: one.finish for one in progress} == {"bad": "error", "good": None}
    harness.submit("again", PROMPT)
    harness.run()
    assert harness.cached["again"] == 0
    assert harness.answers["again"] == answer_alone(PROMPT, 8, frozenset())
