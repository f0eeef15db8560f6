"""Prefixes of a model with recurrent layers are found where snapshots of its states are."""

from __future__ import annotations

from array import array

import pytest
from fake_runtime import Harness, answer_alone

from penstock.base.errors import InvalidRequest
from penstock.dialog import Sampling
from penstock.kernels.recurrent_state import STATE_TILE, matrix_ring
from penstock.scheduler import MAX_DRAFT_TOKENS, MediaSpan, NewSequence
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.state_snapshots import KEPT_ROLLING, StateSnapshots

PROMPT = list(range(1, 20))


def harness(**options: int | bool) -> Harness:
    sizes: dict[str, int | bool] = {"state_snapshots": 8, "max_num_batched_tokens": 64}
    return Harness(**(sizes | options))  # type: ignore[arg-type]


def run(one: Harness, id: str, prompt: list[int], max_tokens: int = 1) -> int:
    """Run a request alone, check its answer, and return the number of its cached tokens."""
    one.submit(id, prompt, max_tokens)
    one.run()
    assert one.answers[id] == answer_alone(prompt, max_tokens, frozenset())
    return one.cached[id]


def test_repeated_prompt_starts_at_its_last_whole_block() -> None:
    one = harness()
    assert run(one, "a", PROMPT) == 0
    assert run(one, "b", PROMPT) == 16
    assert one.scheduler.gauges().state_snapshot_restores == 1


def test_prompt_that_ends_with_a_block_computes_that_block_again() -> None:
    one = harness()
    run(one, "a", PROMPT[:16])
    assert run(one, "b", PROMPT[:16]) == 12


def test_without_slots_no_prefix_is_found() -> None:
    one = harness(state_snapshots=0)
    assert run(one, "a", PROMPT) == run(one, "b", PROMPT) == 0
    assert one.scheduler.gauges().state_snapshots_total == 0


def test_without_kv_cache_each_step_starts_with_an_empty_state() -> None:
    one = harness(no_kv_cache=True)
    run(one, "a", PROMPT, max_tokens=5)
    assert one.scheduler.gauges().state_snapshot_saves == 0


def test_third_prompt_with_a_common_start_begins_where_the_second_left_the_first() -> None:
    one = harness()
    start = PROMPT[:12]
    assert run(one, "a", [*start, 30, 31, 32, 33, 34]) == 0
    assert run(one, "b", [*start, 40, 41, 42, 43, 44]) == 0
    assert run(one, "c", [*start, 50, 51, 52, 53, 54]) == 12


def test_prompts_that_arrive_together_compute_their_common_start_once() -> None:
    one = harness(max_num_seqs=8)
    for index in range(6):
        one.submit(f"r{index}", PROMPT[:16] + [30 + index] * 3, max_tokens=2)
    one.run()
    assert [one.cached[f"r{index}"] for index in range(6)] == [0, 16, 16, 16, 16, 16]


def test_samples_of_one_prompt_compute_it_once() -> None:
    one = harness(max_num_seqs=8)
    for index in range(4):
        one.submit(f"r{index}", PROMPT, max_tokens=2, group="g")
    one.run()
    assert [one.cached[f"r{index}"] for index in range(4)] == [0, 16, 16, 16]


def test_chunks_of_a_long_prompt_leave_snapshots() -> None:
    one = harness(max_num_batched_tokens=10, max_model_len=100)
    long = list(range(1, 40))
    run(one, "a", long)
    assert run(one, "b", long[:25] + [49] * 5) == 20


def test_long_prompt_overwrites_its_own_snapshots_before_others() -> None:
    one = harness(max_num_batched_tokens=8, max_model_len=200, state_snapshots=4)
    run(one, "short", PROMPT)
    run(one, "long", [index % 50 for index in range(100, 200)])
    assert run(one, "again", PROMPT) == 16


def test_next_turn_starts_at_the_last_whole_block_of_the_answer() -> None:
    one = harness()
    run(one, "a", PROMPT, max_tokens=16)
    turn = PROMPT + one.answers["a"] + [7, 7]
    assert run(one, "b", turn) == (len(PROMPT) + 15) // 4 * 4


def test_decoding_sequence_overwrites_its_earlier_snapshots() -> None:
    one = harness()
    run(one, "a", PROMPT, max_tokens=40)
    gauges = one.scheduler.gauges()
    assert gauges.state_snapshot_saves > 8
    assert gauges.state_snapshots_used == 1 + KEPT_ROLLING  # 1 at the end of the prompt
    assert gauges.state_snapshot_evictions == 0


def test_answers_do_not_drive_out_snapshots_of_prompts() -> None:
    one = harness(state_snapshots=4, max_num_seqs=8, num_blocks=200)
    run(one, "system", PROMPT)
    for index in range(8):
        one.submit(f"r{index}", [30 + index], max_tokens=24)
    one.run()
    assert run(one, "again", PROMPT) == 16


def test_preempted_sequence_resumes_from_its_snapshot_and_saves_again() -> None:
    one, other = harness(num_blocks=14, max_num_seqs=2, max_model_len=52), [40, *PROMPT[1:]]
    one.submit("a", PROMPT, max_tokens=12)
    one.submit("b", other, max_tokens=20)
    chunks = []
    while (plan := one.step()) is not None:
        chunks += plan.chunks
    gauges = one.scheduler.gauges()
    assert gauges.preemptions == gauges.state_snapshot_restores == 1
    resumed = next(i for i, chunk in enumerate(chunks) if chunk.state.restore is not None)
    assert chunks[resumed].start >= 24
    assert any(chunk.state.save is not None for chunk in chunks[resumed + 1 :])
    assert one.answers["b"] == answer_alone(other, 20, frozenset())


def test_snapshot_of_a_failed_sequence_is_withdrawn() -> None:
    one = harness()
    one.runtime.fails = lambda row: True
    one.submit("a", PROMPT)
    one.run()
    one.runtime.fails = lambda row: False
    assert one.finishes["a"] == "error"
    assert run(one, "b", PROMPT) == 0
    one.runtime.fails = lambda row: len(one.answers["c"]) == 6
    one.submit("c", PROMPT, max_tokens=12)
    one.run()
    one.runtime.fails = lambda row: False
    assert one.finishes["c"] == "error"
    assert run(one, "d", PROMPT) == 0


def test_snapshot_is_found_only_after_its_step_is_committed() -> None:
    one = harness()
    one.submit("a", PROMPT, max_tokens=3)
    plan = one.scheduler.plan()
    assert plan is not None and plan.chunks[0].state.save is not None
    result = one.runtime.execute(plan)
    one.submit("b", PROMPT)
    ahead = one.scheduler.plan_ahead()
    assert ahead is not None and {chunk.row for chunk in ahead.chunks} == {0}
    assert all(chunk.state.restore is None for chunk in ahead.chunks)
    one.take(result)
    one.commit(ahead)
    one.run()
    assert one.cached["b"] == 16


def test_snapshot_of_an_aborted_sequence_is_dropped() -> None:
    one = harness()
    one.submit("a", PROMPT)
    plan = one.scheduler.plan()
    assert plan is not None
    one.scheduler.abort("a")
    one.commit(plan)
    assert one.scheduler.gauges().state_snapshots_used == 0
    assert run(one, "b", PROMPT) == 0


def test_admitted_sequence_that_leaves_before_its_first_chunk_frees_its_snapshot() -> None:
    one = harness(state_snapshots=1)
    run(one, "a", PROMPT)
    cache, snapshots = one.scheduler._cache, one.scheduler._snapshots
    assert snapshots is not None
    waiting = sequence(PROMPT)
    assert cache.try_admit(waiting, cache.find_prefix(waiting), reserve=0)
    assert snapshots.take_lasting() is None
    cache.free(waiting)
    assert snapshots.take_lasting() == 0


def test_scores_of_a_prompt_with_an_image_are_refused() -> None:
    image = (MediaSpan(2, 4, b"A", whole=True),)
    with pytest.raises(InvalidRequest, match="prompt_logprobs"):
        harness().submit("a", PROMPT, prompt_logprobs=0, media=image)
    harness(state_snapshots=0).submit("a", PROMPT, media=image)


def test_ring_of_pending_tokens_holds_a_tile_and_the_drafts_of_a_step() -> None:
    assert matrix_ring(MAX_DRAFT_TOKENS) >= STATE_TILE + MAX_DRAFT_TOKENS


def sequence(tokens: list[int], arrival: int = 0) -> Sequence:
    new = NewSequence("s", tuple(tokens), Sampling(temperature=0.0), seed=0, max_tokens=1)
    one = Sequence.of(new, len(tokens) + 1)
    assert one.tokens == array("i", tokens)
    one.arrival = arrival
    return one


def saved(snapshots: StateSnapshots, *keys: bytes) -> None:
    for key in keys:
        slot = snapshots.take_lasting()
        assert slot is not None
        snapshots.publish(slot, key)


def test_least_recently_used_snapshot_is_overwritten() -> None:
    snapshots = StateSnapshots(2)
    saved(snapshots, b"a", b"b")
    snapshots.touch(b"a")
    saved(snapshots, b"c")
    assert snapshots.holds(b"a") and not snapshots.holds(b"b")
    assert snapshots.evictions == 1


def test_snapshot_in_use_is_not_overwritten() -> None:
    snapshots = StateSnapshots(1)
    saved(snapshots, b"a")
    first, second = snapshots.acquire(b"a"), snapshots.acquire(b"a")
    assert snapshots.take_lasting() is None
    snapshots.forget(b"a")
    snapshots.release(first)
    assert snapshots.take_lasting() is None
    snapshots.release(second)
    assert snapshots.take_lasting() == first


def test_slot_being_saved_is_not_given_away() -> None:
    snapshots = StateSnapshots(2)
    one = sequence([1])
    first = snapshots.take_rolling(one)
    assert first is not None
    second = snapshots.take_rolling(one)
    assert second is None  # passing snapshots fill half of the slots
    assert snapshots.take_lasting() != first
    assert snapshots.take_lasting() is None


def test_second_snapshot_of_a_prefix_is_freed() -> None:
    snapshots = StateSnapshots(2)
    saved(snapshots, b"a", b"a")
    assert snapshots.num_used == 1


def test_restored_passing_snapshot_becomes_lasting() -> None:
    snapshots = StateSnapshots(2)
    one = sequence([1])
    slot = snapshots.take_rolling(one)
    assert slot is not None
    snapshots.publish(slot, b"a")
    snapshots.release(snapshots.acquire(b"a"))
    assert snapshots.take_rolling(one) != slot
    assert snapshots.holds(b"a")
