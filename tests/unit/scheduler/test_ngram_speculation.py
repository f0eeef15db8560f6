"""Draft tokens are proposed if text repeats and they pay; answers do not change."""

from __future__ import annotations

import tracemalloc
from array import array

import pytest
from fake_runtime import Harness, ScriptedGuide, answer_alone
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler.ngram_speculation import (
    MAX_DRAFT_TOKENS,
    MAX_INDEXED_PER_STEP,
    MIN_INDEXED_PER_ROW,
    NGRAM_INDEX_BYTES,
    NgramIndex,
    NgramSpeculator,
)
from penstock.scheduler.prefill_budget import PrefillBudget

CHEAP, DEAR = 0.1, 0.95


def run(harness: Harness) -> int:
    """Return the steps until all is done, if a token costs a tenth of a step's fixed time."""
    steps = 0
    while (plan := harness.scheduler.plan()) is not None:
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
        steps += 1
    return steps


def continuation_of(index: NgramIndex, tokens: list[int], most: int) -> tuple[tuple[int, ...], int]:
    known = array("i", tokens)
    index.add(known, len(known))
    return index.find(known, most)


def draft_after(
    speculation: NgramSpeculator, tokens: array[int], most: int, token_cost: float
) -> tuple[int, ...]:
    speculation.index(tokens, len(tokens))
    return speculation.propose(tokens, most, token_cost)


def repeating(harness: Harness) -> Harness:
    """Make the runtime answer 0, 1, 2, ..., 9 over and over, independent of the prompt."""
    harness.runtime.next_token = lambda before: (before + 1) % 10
    return harness


def test_the_index_finds_the_tokens_after_the_last_occurrence() -> None:
    index = NgramIndex()
    assert continuation_of(index, [1, 2, 3, 4, 5, 1, 2], 4) == ((), 0)
    assert continuation_of(index, [1, 2, 3, 4, 5, 1, 2, 3], 4) == ((4, 5, 1, 2), 3)
    assert continuation_of(index, [1, 2, 3, 4, 5, 1, 2, 3, 9, 1, 2, 3], 2) == ((9, 1), 3)


def test_the_index_returns_the_length_of_the_match() -> None:
    passage = list(range(40))
    for same in (3, 5, 9, 16):
        assert continuation_of(NgramIndex(), [*passage, 99, *passage[:same]], 1) == ((same,), same)
    assert continuation_of(NgramIndex(), [*passage, 99, *passage[:30]], 1) == ((30,), 16)


def test_a_draft_that_reaches_the_end_repeats_itself() -> None:
    assert continuation_of(NgramIndex(), [7, 8, 7, 8, 7], 5)[0] == (8, 7, 8, 7, 8)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_the_index_does_not_depend_on_how_the_text_is_split(tokens: list[int], piece: int) -> None:
    grown, index, draft = array("i"), NgramIndex(), ((), 0)
    for start in range(0, len(tokens), piece):
        grown.extend(tokens[start : start + piece])
        index.add(grown, len(grown))
        draft = index.find(grown, 5)
    assert draft == continuation_of(NgramIndex(), tokens, 5)


def test_an_index_stays_within_its_planned_memory() -> None:
    for length in (1000, 21_900):  # at the second length the table has just grown
        tokens, index = array("i", range(50_000, 50_000 + length)), NgramIndex()
        tracemalloc.start()
        index.add(tokens, length)
        size_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size_bytes <= NGRAM_INDEX_BYTES * length


def trained(right: float) -> NgramSpeculator:
    speculation = NgramSpeculator()
    draft_after(speculation, array("i", [1, 2, 3] * 20), 1, CHEAP)
    for count in range(400):
        speculation.learn(1, int((count + 1) * right) - int(count * right))
    return speculation


def test_drafts_are_long_if_they_are_accepted_and_absent_if_not() -> None:
    tokens = array("i", [1, 2, 3] * 20)
    assert len(draft_after(trained(1.0), tokens, 99, CHEAP)) == MAX_DRAFT_TOKENS
    assert 2 <= len(draft_after(trained(0.7), tokens, 99, CHEAP)) < MAX_DRAFT_TOKENS
    assert draft_after(trained(0.0), tokens, 99, CHEAP) == ()


@pytest.mark.parametrize(("token_cost", "most"), [(0.1, 12), (0.2, 4), (0.3, 2), (0.45, 0)])
def test_text_that_does_not_copy_costs_a_few_draft_tokens(token_cost: float, most: int) -> None:
    """Three tokens occur again and again, followed by a different token each time."""
    speculation, tokens, drafted = NgramSpeculator(), array("i"), 0
    for place in range(20):
        tokens.extend([1000 + place, 1, 2, 3])
        draft = draft_after(speculation, tokens, 99, token_cost)
        drafted += len(draft)
        if draft:
            speculation.learn(len(draft), 0)
    assert 0 < drafted <= most if most else drafted == 0


def test_a_higher_token_cost_shortens_drafts() -> None:
    tokens = array("i", [1, 2, 3] * 20)
    assert draft_after(trained(0.9), tokens, 99, DEAR) == ()
    assert draft_after(trained(0.9), tokens, 99, 0.5) < draft_after(trained(0.9), tokens, 99, CHEAP)


def test_drafts_resume_when_a_sequence_starts_to_repeat() -> None:
    speculation, tokens = trained(0.0), array("i", [1, 2, 3] * 20)
    drafts = [draft_after(speculation, tokens, 99, CHEAP) for _ in range(100)]
    assert 1 <= sum(map(bool, drafts)) <= 5
    assert max(map(len, drafts)) == 1


def test_the_cost_of_a_token_is_known_once_step_sizes_differ() -> None:
    prefill_budget = PrefillBudget(min_share=4)
    assert prefill_budget.token_cost(1) == 1.0
    for tokens in (40, 1, 1, 8, 1, 20, 1):
        prefill_budget.observe(tokens, 0.009 + 0.001 * tokens)
    assert prefill_budget.token_cost(1) == pytest.approx(0.1, abs=0.02)
    assert prefill_budget.token_cost(9) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("vocab", [3, 4, 50])
def test_answers_are_the_same_with_and_without_speculation(vocab: int, guided: bool) -> None:
    prompts = [[seed % 3, seed // 3 % 3, *[1, 2] * seed, 1] for seed in range(12)]
    harness = Harness(
        speculation=True, vocab=vocab, max_model_len=200, num_blocks=400, max_num_batched_tokens=64
    )

    def guide() -> ScriptedGuide | None:
        return ScriptedGuide((1, 2)) if guided else None

    for index, prompt in enumerate(prompts):
        harness.submit(f"r{index}", prompt, 40 + index, frozenset({49}), guide=guide())
    run(harness)
    for index, prompt in enumerate(prompts):
        right = answer_alone(prompt, 40 + index, frozenset({49}), guide(), vocab)
        assert harness.answers[f"r{index}"] == right
    if vocab < 50 and not guided:
        assert harness.scheduler.gauges().accepted_tokens > 10


def test_a_repeating_answer_needs_fewer_steps() -> None:
    plain, speculating = repeating(Harness()), repeating(Harness(speculation=True))
    for harness in (plain, speculating):
        harness.submit("a", [*range(20), 1, 2, 3], 100)
    assert 3 * run(speculating) < run(plain)
    assert plain.answers == speculating.answers
    assert speculating.scheduler.gauges().accepted_tokens > 60


def test_no_draft_tokens_if_speculation_is_off_or_without_kv_cache() -> None:
    for options in ({}, {"speculation": True, "no_kv_cache": True}):
        harness = repeating(Harness(**options))
        harness.submit("a", [*range(20), 1, 2, 3], 60)
        run(harness)
        assert harness.runtime.drafted == 0


def test_drafts_leave_room_for_the_other_rows() -> None:
    harness = repeating(
        Harness(speculation=True, max_num_batched_tokens=24, max_num_seqs=4, max_model_len=100)
    )
    for index in range(4):
        harness.submit(f"r{index}", [*range(20), 1, 2, index], 60)
    while (plan := harness.scheduler.plan()) is not None:
        running = harness.scheduler.gauges().sequences_running
        assert plan.num_tokens <= 24
        if any(chunk.draft_tokens for chunk in plan.chunks):
            assert len(plan.chunks) == running
        assert sum(len(chunk.draft_tokens) for chunk in plan.chunks) <= MAX_DRAFT_TOKENS
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    assert set(harness.finishes.values()) == {"length"}
    assert harness.runtime.drafted > 0


def with_long_prompts(count: int) -> Harness:
    """Requests that repeat their prompts, which are longer than a step can index."""
    harness = repeating(
        Harness(
            speculation=True,
            num_blocks=10_000,
            max_model_len=2 * MAX_INDEXED_PER_STEP,
            max_num_batched_tokens=2 * MAX_INDEXED_PER_STEP,
        )
    )
    for index in range(count):
        harness.submit(f"long{index}", [index, *range(10)] * (MAX_INDEXED_PER_STEP // 8), 100)
    return harness


def test_long_prompts_are_indexed_over_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    indexed: list[int] = []
    add = NgramIndex.add

    def counted(self: NgramIndex, tokens: array[int], most: int) -> int:
        indexed.append(add(self, tokens, most))
        return indexed[-1]

    monkeypatch.setattr(NgramIndex, "add", counted)
    harness = with_long_prompts(3)
    while (plan := harness.scheduler.plan()) is not None:
        assert sum(indexed) <= MAX_INDEXED_PER_STEP + 3 * MIN_INDEXED_PER_ROW
        indexed.clear()
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    assert harness.scheduler.gauges().accepted_tokens > 60
    plain = repeating(Harness())
    plain.submit("short", [*range(10)], 100)
    run(plain)
    assert list(harness.answers.values()) == [plain.answers["short"]] * 3


def test_a_short_prompt_gets_drafts_while_a_long_one_is_indexed() -> None:
    harness = with_long_prompts(1)
    harness.submit("short", [*range(10), 0, 1, 2], 100)
    rows: list[int] = []
    while (plan := harness.scheduler.plan()) is not None:
        rows += [chunk.row for chunk in plan.chunks if chunk.draft_tokens]
        harness.commit(plan, 0.010 + 0.001 * plan.num_tokens)
    assert rows[0] == 1 and 0 in rows
