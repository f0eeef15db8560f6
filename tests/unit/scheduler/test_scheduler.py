"""Each rule of the scheduler, with a runtime whose cache holds digests of prefixes."""

from __future__ import annotations

import pytest
from fake_runtime import Harness, answer_alone

from penstock.base.errors import ContextLengthExceeded, InvalidRequest, Overloaded

NO_STOPS: frozenset[int] = frozenset()
PROMPT = list(range(30))


def expect(harness: Harness, id: str, prompt: list[int], max_tokens: int) -> None:
    assert harness.answers[id] == answer_alone(prompt, max_tokens, NO_STOPS)
    assert harness.finishes[id] == "length"


def test_a_prompt_is_split_into_chunks_of_the_token_budget() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("a", PROMPT)
    lengths = [chunk.length for _ in range(4) if (p := harness.step()) for chunk in p.chunks]
    assert lengths == [8, 8, 8, 6]
    harness.run()
    expect(harness, "a", PROMPT, 8)


def test_other_work_may_delay_a_step_as_long_as_prefill_may() -> None:
    harness = Harness(max_num_batched_tokens=1024, max_model_len=1024, num_blocks=1024)
    scheduler = harness.scheduler

    def timed_step() -> int:
        plan = scheduler.plan()
        assert plan is not None
        harness.commit(plan, duration_s=0.003 + 0.0001 * plan.num_tokens)
        return plan.num_tokens

    assert scheduler.pause_s(1) is None
    harness.submit("a", [1, 2, 3], max_tokens=900)
    assert scheduler.pause_s(1) == 0.0, "no step has been measured yet"
    for _ in range(20):
        timed_step()
    alone_s = 0.0031
    assert scheduler.pause_s(1) == pytest.approx(0.9 * alone_s, rel=0.05)
    assert scheduler.pause_s(2) == pytest.approx(0.1 - alone_s, rel=0.05), "more wait than decode"
    harness.submit("b", PROMPT * 20, max_tokens=2)
    for _ in range(3):
        timed_step()
    pause_s = scheduler.pause_s(0)
    assert pause_s == pytest.approx(0.45 * alone_s, rel=0.2), "the prompt has the other half"
    unlimited = timed_step()
    scheduler.pause(pause_s)
    half = timed_step()
    assert half - 1 == pytest.approx((unlimited - 1) / 2, abs=2)
    assert timed_step() == pytest.approx(unlimited, abs=2), "the time was taken once"


def test_decodes_precede_prefills_in_a_mixed_step() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("a", [1, 2, 3])
    harness.step()
    harness.submit("b", PROMPT)
    plan = harness.step()
    assert plan is not None
    assert [(c.length, c.samples) for c in plan.chunks] == [(1, True), (7, False)]
    harness.run()
    expect(harness, "a", [1, 2, 3], 8)
    expect(harness, "b", PROMPT, 8)


def test_the_measured_step_time_limits_prefill_beside_decodes() -> None:
    harness = Harness(max_num_batched_tokens=1024, max_model_len=1024, num_blocks=1024)

    def timed_step() -> list[int]:
        plan = harness.scheduler.plan()
        assert plan is not None
        harness.commit(plan, duration_s=0.003 + 0.0001 * plan.num_tokens)
        return [chunk.length for chunk in plan.chunks]

    harness.submit("a", [1, 2, 3], max_tokens=100)
    for _ in range(5):
        timed_step()
    mixed = []
    for i in range(6):
        harness.submit(f"b{i}", [i] * 200, max_tokens=2)
        steps = [timed_step() for _ in range(10)]
        mixed += [sum(lengths) for lengths in steps if max(lengths) > 1]
    assert max(mixed[2:]) <= 32, "a step of 3.1 ms becomes at most about twice as long"
    assert max(mixed[2:]) >= 24, "and prompts still get their share"


def test_a_prefill_of_one_token_does_not_slow_other_prefills_down() -> None:
    harness = Harness(max_num_batched_tokens=256, max_model_len=1024, num_blocks=1024)

    def timed_step() -> int:
        plan = harness.scheduler.plan()
        assert plan is not None
        harness.commit(plan, duration_s=0.003 + 0.0001 * plan.num_tokens)
        return plan.num_tokens

    harness.submit("taught", [1] * 300, max_tokens=10)
    while harness.scheduler.has_work:
        timed_step()
    harness.submit("a", [2] * 257, max_tokens=1)
    harness.submit("b", [3] * 900, max_tokens=1)
    assert [timed_step() for _ in range(4)] == [256] * 4
    harness.run()
    expect(harness, "a", [2] * 257, 1)
    expect(harness, "b", [3] * 900, 1)


def test_waiting_requests_are_admitted_in_order_of_arrival_while_rows_last() -> None:
    harness = Harness(max_num_seqs=2)
    for id in "abc":
        harness.submit(id, [ord(id)], max_tokens=3)
    plan = harness.step()
    assert plan is not None
    assert [admit.token_ids for admit in plan.admissions] == [(ord("a"),), (ord("b"),)]
    harness.run()
    assert list(harness.finishes) == ["a", "b", "c"]


def test_a_repeated_prompt_comes_from_the_cache_except_its_last_token() -> None:
    harness = Harness(block_size=4)
    prompt = PROMPT[:16]
    harness.submit("a", prompt)
    harness.run()
    harness.submit("b", prompt)
    plan = harness.step()
    assert plan is not None
    assert [(c.start, c.length) for c in plan.chunks] == [(12, 4)]
    harness.run()
    assert harness.answers["a"] == harness.answers["b"]
    assert (harness.cached["a"], harness.cached["b"]) == (0, 12)
    gauges = harness.scheduler.gauges()
    assert (gauges.prefix_cache_lookups, gauges.prefix_cache_hits) == (2, 1)


def test_the_next_turn_finds_the_previous_answer_in_the_cache() -> None:
    harness = Harness(block_size=4)
    harness.submit("a", PROMPT[:10], max_tokens=7)
    harness.run()
    turn = PROMPT[:10] + harness.answers["a"] + [7, 7]
    harness.submit("b", turn)
    harness.run()
    assert harness.cached["b"] == 16  # of 17 tokens, the last of which was never computed
    expect(harness, "b", turn, 8)


def test_salts_keep_prefixes_apart() -> None:
    harness = Harness()
    harness.submit("a", PROMPT, salt=b"one")
    harness.run()
    harness.submit("b", PROMPT, salt=b"two")
    harness.run()
    assert harness.cached["b"] == 0


@pytest.mark.parametrize(("apart", "cached"), [(False, 36), (True, 28)])
def test_an_answer_is_found_as_a_prompt_unless_prompts_are_told_apart(
    apart: bool, cached: int
) -> None:
    """The second turn of a conversation has the prompt, the answer and a further message."""
    harness = Harness(block_size=4, tells_prompts_apart=apart)
    harness.submit("a", PROMPT)
    harness.run()
    prompt = [*PROMPT, *harness.answers["a"], 1, 2, 3]
    harness.submit("b", prompt)
    harness.run()
    assert harness.cached["b"] == cached
    assert harness.answers["b"] == answer_alone(prompt, 8, NO_STOPS, kind=harness.runtime.kind)


def test_a_preempted_request_finds_its_generated_blocks_if_prompts_are_told_apart() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32, tells_prompts_apart=True)
    for id in "ab":
        harness.submit(id, [ord(id)] * 8, max_tokens=20)
    harness.run()
    assert harness.scheduler.gauges().preemptions > 0
    for id in "ab":
        right = answer_alone([ord(id)] * 8, 20, NO_STOPS, kind=harness.runtime.kind)
        assert harness.answers[id] == right


def test_a_request_waits_for_a_prefix_that_another_is_computing() -> None:
    harness = Harness(max_num_batched_tokens=64, block_size=4)
    for id in "abc":
        harness.submit(id, PROMPT)
    first, second = harness.step(), harness.step()
    assert first is not None and second is not None
    assert len(first.admissions) == 1
    assert sorted(c.length for c in second.chunks) == [1, 2, 2]
    assert harness.cached == {"a": 0, "b": 28, "c": 28}


def test_a_short_common_prefix_is_not_waited_for() -> None:
    harness = Harness(max_num_batched_tokens=64, block_size=4)
    harness.submit("a", [1, 1, 1, 1, *PROMPT[:10]])
    harness.submit("b", [1, 1, 1, 1, *PROMPT[10:20]])
    plan = harness.step()
    assert plan is not None
    assert len(plan.admissions) == 2


def test_aborting_a_request_releases_those_that_wait_for_its_prefix() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.submit("a", PROMPT)
    harness.submit("b", PROMPT)
    harness.step()
    harness.scheduler.abort("a")
    harness.run()
    expect(harness, "b", PROMPT, 8)


def test_without_prefix_caching_every_prompt_is_computed() -> None:
    harness = Harness(prefix_caching=False)
    for id in "ab":
        harness.submit(id, PROMPT)
        harness.run()
    assert harness.cached == {"a": 0, "b": 0}
    assert harness.scheduler.gauges().prefix_cache_lookups == 0


def test_preempted_request_resumes_with_same_tokens() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32)
    for id in "ab":
        harness.submit(id, [ord(id)] * 8, max_tokens=20)
    harness.run()
    gauges = harness.scheduler.gauges()
    assert gauges.preemptions > 0
    for id in "ab":
        expect(harness, id, [ord(id)] * 8, 20)


def test_a_resumed_request_finds_its_own_blocks() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32, max_num_seqs=2)
    harness.submit("a", [1] * 8, max_tokens=12)
    harness.submit("b", [2] * 8, max_tokens=12)
    while harness.scheduler.gauges().preemptions == 0:
        harness.step()
    resumed = None
    while resumed is None:
        plan = harness.step()
        assert plan is not None
        resumed = next((admit for admit in plan.admissions), None)
    chunk = next(chunk for chunk in plan.chunks if chunk.row == resumed.row)
    assert chunk.start > 0
    assert resumed.prompt_tokens == 8 < len(resumed.token_ids)
    harness.run()
    expect(harness, "b", [2] * 8, 12)
    assert harness.cached["b"] == 0, "its own blocks are not a saved prompt"


def test_the_newest_request_is_preempted_and_the_oldest_never() -> None:
    harness = Harness(num_blocks=8, block_size=2, max_model_len=16, max_num_seqs=4)
    for id in "abcd":
        harness.submit(id, [ord(id)] * 3, max_tokens=10)
    harness.run()
    assert list(harness.finishes) == ["a", "b", "c", "d"]
    assert harness.scheduler.gauges().preemptions > 0


def test_evictions_are_counted() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32)
    for id in "abcd":
        harness.submit(id, [ord(id)] * 16, max_tokens=1)
        harness.run()
    assert harness.scheduler.gauges().prefix_cache_evictions == 8


def test_stop_token_ends_the_answer_and_is_not_part_of_it() -> None:
    harness = Harness()
    whole = answer_alone(PROMPT, 8, NO_STOPS)
    stop = whole[3]
    harness.submit("a", PROMPT, stops=frozenset({stop}))
    harness.run()
    assert harness.answers["a"] == whole[: whole.index(stop)]
    assert harness.finishes["a"] == "stop"


def test_the_context_ends_an_answer_as_length() -> None:
    harness = Harness(max_model_len=32)
    harness.submit("a", PROMPT, max_tokens=100)
    harness.run()
    expect(harness, "a", PROMPT, 2)


def test_a_failed_row_ends_only_itself_and_its_blocks_are_never_found() -> None:
    harness = Harness()
    harness.submit("a", PROMPT)
    harness.submit("b", PROMPT[::-1])
    plan = harness.step()
    assert plan is not None
    row = plan.admissions[0].row
    harness.step()
    harness.runtime.fails = lambda other: other == row
    harness.step()
    harness.runtime.fails = lambda other: False
    assert harness.finishes == {"a": "error"}
    harness.run()
    expect(harness, "b", PROMPT[::-1], 8)
    harness.submit("c", PROMPT)
    harness.run()
    assert harness.cached["c"] == 0
    assert harness.scheduler.gauges().completed_error == 1


def test_an_abort_in_the_middle_of_a_step_frees_everything_after_it() -> None:
    harness = Harness()
    harness.submit("a", PROMPT)
    plan = harness.scheduler.plan()
    assert plan is not None
    assert harness.scheduler.abort("a")
    assert harness.scheduler.gauges().kv_cache_blocks_used == 8
    harness.commit(plan)
    assert (harness.answers["a"], harness.finishes) == ([], {})
    gauges = harness.scheduler.gauges()
    assert (gauges.kv_cache_blocks_used, gauges.sequences_running) == (0, 0)
    assert gauges.completed_abort == 1
    assert not harness.scheduler.has_work
    assert not harness.scheduler.abort("a")


def test_a_request_that_never_fits_is_refused() -> None:
    harness = Harness(num_blocks=4, block_size=4, max_model_len=32)
    with pytest.raises(ContextLengthExceeded, match="32 tokens holds at most 31"):
        harness.submit("a", list(range(32)))
    with pytest.raises(ContextLengthExceeded, match="cache of 16 tokens"):
        harness.submit("a", list(range(10)), max_tokens=8)
    with pytest.raises(InvalidRequest, match="empty"):
        harness.submit("a", [])
    with pytest.raises(InvalidRequest, match="max_tokens"):
        harness.submit("a", [1], max_tokens=-1)
    harness.submit("a", list(range(10)), max_tokens=7)
    harness.run()
    expect(harness, "a", list(range(10)), 7)


def test_a_full_queue_refuses_with_a_retry_time() -> None:
    harness = Harness(max_queue=1, max_num_seqs=1)
    harness.submit("a", [1], max_tokens=1)
    harness.submit("b", [2])
    with pytest.raises(Overloaded) as refused:
        harness.submit("c", [3])
    assert refused.value.retry_after_s == 1
    harness.step()
    harness.submit("c", [3])
    harness.run()
    assert len(harness.finishes) == 3


def test_requests_with_free_rows_do_not_count_in_the_queue() -> None:
    harness = Harness(max_queue=2, max_num_seqs=4)
    for place in range(6):
        harness.submit(str(place), [place])
    with pytest.raises(Overloaded):
        harness.submit("one too many", [7])
    harness.run()
    assert len(harness.finishes) == 6


def test_a_queue_that_accepts_the_first_of_a_group_accepts_all() -> None:
    harness = Harness(max_queue=1, max_num_seqs=2)
    for place in range(4):
        harness.submit(f"a{place}", [place], group="a")
    harness.step()
    for place in range(4, 20):
        harness.submit(f"a{place}", [place], group="a")
    with pytest.raises(Overloaded):
        harness.submit("b", [1], group="b")
    with pytest.raises(Overloaded):
        harness.submit("c", [1])
    harness.scheduler.abort("a19")
    harness.run()
    assert len(harness.finishes) == 19


def test_a_finished_group_does_not_bypass_the_queue_limit() -> None:
    harness = Harness(max_queue=1, max_num_seqs=1)
    harness.submit("a", [1], group="a", max_tokens=1)
    harness.submit("aborted", [1], group="a")
    harness.scheduler.abort("aborted")
    harness.run()
    harness.submit("b", [1])
    harness.submit("c", [1])
    with pytest.raises(Overloaded):
        harness.submit("d", [1], group="a")


def test_without_a_cache_every_step_computes_whole_contexts() -> None:
    harness = Harness(no_kv_cache=True, max_model_len=48, max_num_batched_tokens=16)
    harness.submit("a", PROMPT, max_tokens=3)
    harness.submit("b", [5, 6], max_tokens=3)
    starts = set()
    while (plan := harness.step()) is not None:
        starts |= {chunk.start for chunk in plan.chunks}
        assert all(chunk.samples for chunk in plan.chunks)
    assert starts == {0}
    expect(harness, "a", PROMPT, 3)
    expect(harness, "b", [5, 6], 3)


def test_a_large_prompt_is_not_overtaken_forever() -> None:
    harness = Harness(num_blocks=8, block_size=4, max_model_len=32, max_num_seqs=4)
    harness.submit("small0", [0] * 4, max_tokens=6)
    harness.step()
    harness.submit("large", list(range(26)), max_tokens=4)
    for i in range(1, 30):
        harness.submit(f"small{i}", [i] * 4, max_tokens=6)
    harness.run()
    assert list(harness.finishes).index("large") <= 1
