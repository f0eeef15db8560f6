"""The CPU KV cache: prefixes that the device overwrote are restored when needed again."""

from __future__ import annotations

from fake_runtime import Harness, answer_alone

from penstock.scheduler import CpuKvCacheIndex
from penstock.scheduler.types import CopyBlock

A = list(range(1, 25))  # six blocks of four
B = list(range(60, 84))


def small(**options: int) -> Harness:
    """Eight blocks: enough for one prompt at a time."""
    return Harness(**({"num_blocks": 8, "max_model_len": 32, "cpu_blocks": 20} | options))


def answer(harness: Harness, id: str, prompt: list[int]) -> None:
    harness.submit(id, prompt, max_tokens=4)
    harness.run()
    assert harness.answers[id] == answer_alone(prompt, 4, frozenset())


def test_an_overwritten_prefix_is_restored_and_not_computed_again() -> None:
    harness = small()
    for id, prompt in (("a", A), ("b", B), ("again", A), ("b again", B)):
        answer(harness, id, prompt)
    assert harness.cached["again"] == harness.cached["b again"] == 20
    gauges = harness.scheduler.gauges()
    assert gauges.host_cache_restores >= 8
    assert gauges.host_cache_saves == gauges.host_cache_blocks_used <= 14
    assert gauges.prefix_cache_hits == 2
    without = small(cpu_blocks=0)
    for id, prompt in (("a", A), ("b", B), ("again", A)):
        answer(without, id, prompt)
    assert without.cached["again"] < 20


def test_running_requests_continue_during_a_restore() -> None:
    harness = small(num_blocks=12)
    answer(harness, "a", A)
    answer(harness, "b", B)
    answer(harness, "c", [95] * 8)
    harness.runtime.copies_wait = True
    harness.submit("long", [90, 91, 92], max_tokens=9)
    harness.step()
    harness.submit("again", A, max_tokens=2)
    plans = [harness.step() for _ in range(3)]
    assert all(plan is not None and len(plan.chunks) == 1 for plan in plans)
    first = plans[0]
    assert first is not None and first.restores and not first.awaits
    harness.runtime.copy(100)
    harness.step()  # its result reports the restore
    plan = harness.step()
    assert plan is not None and len(plan.chunks) == 2
    assert plan.awaits == first.step
    harness.run()
    assert harness.answers["again"] == answer_alone(A, 2, frozenset())
    assert harness.answers["long"] == answer_alone([90, 91, 92], 9, frozenset())


def test_a_single_request_waits_for_its_restore_on_the_device() -> None:
    harness = small()
    answer(harness, "a", A)
    answer(harness, "b", B)
    harness.runtime.copies_wait = True
    harness.submit("again", A, max_tokens=2)
    plan = harness.step()
    assert plan is not None and plan.restores and plan.awaits == plan.step
    harness.run()
    assert harness.answers["again"] == answer_alone(A, 2, frozenset())


def test_blocks_of_an_aborted_request_are_reused_after_their_restore() -> None:
    harness = small(num_blocks=12)
    answer(harness, "a", A)
    answer(harness, "b", B)
    answer(harness, "c", [95] * 8)
    harness.runtime.copies_wait = True
    harness.submit("long", [90, 91, 92], max_tokens=9)
    harness.step()
    harness.submit("again", A, max_tokens=2)
    plan = harness.step()
    assert plan is not None and plan.restores
    harness.scheduler.abort("again")
    after = harness.step()
    assert after is not None and after.awaits == plan.step
    harness.run()


def test_the_least_recently_used_copy_is_evicted() -> None:
    cpu_cache = CpuKvCacheIndex(2, 10)
    for block, key in enumerate((b"a", b"b")):
        cpu_cache.save(key, block)
    assert cpu_cache.take_plans()[0] == (CopyBlock(0, 0), CopyBlock(1, 1))
    cpu_cache.save(b"a", 5)  # already saved
    cpu_cache.save(b"c", 6)
    saves, _, _ = cpu_cache.take_plans()
    assert saves == (CopyBlock(6, 1),)
    assert [cpu_cache.count_known([key]) for key in (b"a", b"b", b"c")] == [1, 0, 1]


def test_a_copy_being_restored_is_not_evicted_in_the_same_step() -> None:
    cpu_cache = CpuKvCacheIndex(1, 10)
    cpu_cache.save(b"a", 0)
    cpu_cache.take_plans()
    assert cpu_cache.read([b"a"]) == [0]
    cpu_cache.save(b"b", 1)
    assert cpu_cache.restore([0], [3]) == cpu_cache.step
    assert cpu_cache.take_plans() == ((), (CopyBlock(3, 0),), 0)
    cpu_cache.save(b"b", 1)
    assert cpu_cache.take_plans()[0] == (CopyBlock(1, 0),)


def test_a_step_saves_at_most_its_limit() -> None:
    cpu_cache = CpuKvCacheIndex(10, 2)
    for block, key in enumerate((b"a", b"b", b"c")):
        cpu_cache.save(key, block)
    assert len(cpu_cache.take_plans()[0]) == cpu_cache.num_used == 2


def test_copies_with_wrong_content_are_dropped() -> None:
    harness = small()
    answer(harness, "a", A)
    answer(harness, "b", B)
    harness.runtime.fails = lambda row: True
    harness.submit("again", A, max_tokens=2)
    harness.run()
    assert harness.finishes["again"] == "error"
    harness.runtime.fails = lambda row: False
    answer(harness, "last", A)
    assert harness.cached["last"] == 0
