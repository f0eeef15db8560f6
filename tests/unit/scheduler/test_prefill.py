"""Prompts share the prefill of a step: short ones pass long ones, which give up at most a tenth."""

from __future__ import annotations

from itertools import count

import pytest
from fake_runtime import Harness, answer_alone, scores_alone

from penstock.scheduler import StepPlan

BUDGET = 512
LONG = 5900
NO_STOPS: frozenset[int] = frozenset()


def prompt(first: int, length: int) -> list[int]:
    """Return a prompt; prompts with different first tokens share no prefix."""
    return [first, *[1] * (length - 1)]


def crowd(**options: int) -> Harness:
    sizes = {"num_blocks": 8192, "block_size": 16, "max_model_len": 8192, "max_num_seqs": 32}
    return Harness(**sizes | {"max_num_batched_tokens": BUDGET} | options)


def step(harness: Harness) -> StepPlan:
    plan = harness.step()
    assert plan is not None
    return plan


def steps_to_first_token(harness: Harness, id: str, most: int = 1000) -> int:
    for number in range(1, most + 1):
        step(harness)
        if harness.answers[id]:
            return number
    raise AssertionError(f"{id} has no token after {most} steps")


@pytest.mark.parametrize("length", [1, 30, 51])
@pytest.mark.parametrize("num_long", [1, 2, 16])
@pytest.mark.parametrize("long_steps", [0, 1, 7])
def test_a_short_prompt_beside_long_ones_has_its_first_token_in_the_next_step(
    length: int, num_long: int, long_steps: int
) -> None:
    harness = crowd()
    for place in range(num_long):
        harness.submit(f"long{place}", prompt(place, LONG), max_tokens=1)
    for _ in range(long_steps):
        step(harness)
    harness.submit("short", prompt(99, length), max_tokens=1)
    assert steps_to_first_token(harness, "short") == 1
    harness.run()
    assert harness.answers["short"] == answer_alone(prompt(99, length), 1, NO_STOPS)


def test_a_prompt_of_three_tenths_of_a_step_has_its_first_token_in_three_steps() -> None:
    harness = crowd()
    harness.submit("long", prompt(0, LONG), max_tokens=1)
    harness.submit("short", prompt(1, 3 * (BUDGET // 10)), max_tokens=1)
    assert steps_to_first_token(harness, "short") == 3


def test_a_stream_of_short_prompts_takes_at_most_a_tenth_from_a_long_one() -> None:
    harness, alone = crowd(), crowd()
    for one in (harness, alone):
        one.submit("long", prompt(0, LONG), max_tokens=1)
    for number in count():
        for place in range(5):
            harness.submit(f"{number}.{place}", prompt(100 + 5 * number + place, 40), max_tokens=1)
        assert step(harness).num_tokens == BUDGET
        if harness.answers["long"]:
            break
    assert number + 1 <= -(-steps_to_first_token(alone, "long") * 10 // 9)
    assert len(harness.finishes) > number, "and the short ones advance"


def test_untaken_tokens_are_credited_for_three_steps() -> None:
    harness = crowd()
    harness.submit("long", prompt(0, LONG), max_tokens=1)
    for _ in range(6):
        step(harness)
    for place in range(1, 10):
        harness.submit(f"short{place}", prompt(place, 50), max_tokens=1)
    finished = []
    for _ in range(3):
        step(harness)
        finished.append(len(harness.finishes))
    assert finished == [3, 4, 5], "153 tokens at once, and 51 a step after that"


def test_prompts_of_one_size_do_not_pass_each_other() -> None:
    harness = crowd()
    for place in range(16):
        harness.submit(str(place), prompt(place, 600), max_tokens=1)
    harness.run()
    assert list(harness.finishes) == [str(place) for place in range(16)]


def test_a_prompt_gives_no_tokens_to_one_that_is_not_much_shorter() -> None:
    harness = crowd()
    harness.submit("a", prompt(0, 500), max_tokens=1)
    harness.submit("b", prompt(1, LONG), max_tokens=1)
    harness.submit("c", prompt(2, 500), max_tokens=1)
    step(harness)
    assert list(harness.finishes) == ["a"], "b gives to c, a does not"


def test_a_prompt_ages_until_short_prompts_that_keep_arriving_no_longer_pass_it() -> None:
    """500 tokens are due after 5,000 prefill tokens, which is ten steps."""
    harness = crowd(max_model_len=16384)
    harness.submit("long", prompt(0, 16000), max_tokens=1)
    harness.submit("middle", prompt(1, 500), max_tokens=1)
    for number in range(20):
        harness.submit(f"short{number}", prompt(100 + number, 50), max_tokens=1)
        step(harness)
    assert harness.answers["middle"]
    assert not harness.answers["long"]


def test_a_prompt_that_passed_still_yields_to_an_older_waiting_one() -> None:
    """The middle prompt gets a row before the second long one, and stops when the first is nearly
    done: the rest of the first one's last step belongs to the second."""
    harness = crowd()
    harness.submit("long", prompt(0, 2500), max_tokens=1)
    harness.submit("next", prompt(1, 2500), max_tokens=1)
    harness.submit("middle", prompt(2, 250), max_tokens=1)
    for number in range(3, 6):
        step(harness)
        harness.submit(f"short{number}", prompt(number, 50), max_tokens=1)
    while not harness.answers["long"]:
        plan = step(harness)
    (next_row,) = (admit.row for admit in plan.admissions)
    assert max((chunk.length, chunk.row) for chunk in plan.chunks)[1] == next_row
    assert not harness.answers["middle"]
    harness.run()
    assert list(harness.finishes)[-2:] == ["middle", "next"]


def test_a_short_prompt_passes_one_that_waits_for_the_prefix_of_a_long_one() -> None:
    harness = crowd()
    for place in range(20):
        harness.submit(f"long{place}", prompt(0, LONG), max_tokens=2)
    step(harness)
    harness.submit("short", prompt(1, 20), max_tokens=1)
    assert steps_to_first_token(harness, "short") == 1
    harness.run()
    assert {harness.cached[f"long{place}"] for place in range(1, 20)} == {LONG // 16 * 16}


def test_a_short_prompt_passes_one_that_waits_for_room_for_its_scores() -> None:
    harness = crowd(max_num_seqs=4)
    for place in range(2):
        harness.submit(f"long{place}", prompt(place, 400), max_tokens=1, prompt_logprobs=0)
    step(harness)
    harness.submit("short", prompt(2, 20), max_tokens=1)
    assert steps_to_first_token(harness, "short") == 1
    harness.run()
    for place in range(2):
        assert harness.scores[f"long{place}"] == scores_alone(prompt(place, 400))


def test_a_short_prompt_with_log_probabilities_passes_too() -> None:
    harness = crowd()
    harness.submit("long", prompt(0, LONG), max_tokens=1)
    step(harness)
    harness.submit("short", prompt(1, 20), max_tokens=1, prompt_logprobs=0)
    assert steps_to_first_token(harness, "short") == 1
    assert harness.scores["short"] == scores_alone(prompt(1, 20))


def test_a_long_prompt_that_is_mostly_cached_passes() -> None:
    harness = crowd()
    harness.submit("before", prompt(1, 4000), max_tokens=1)
    harness.run()
    harness.submit("long", prompt(0, LONG), max_tokens=1)
    step(harness)
    harness.submit("again", [*prompt(1, 4000), 7, 7, 7], max_tokens=1)
    assert steps_to_first_token(harness, "again") == 1
    assert harness.cached["again"] == 4000


def order_of_admission(harness: Harness, steps: int) -> list[int]:
    """Return the first tokens of the prompts admitted in the next steps."""
    plans = [step(harness) for _ in range(steps)]
    return [admit.token_ids[0] for plan in plans for admit in plan.admissions]


@pytest.mark.parametrize(("max_num_seqs", "order"), [(2, [0, 1]), (3, [0, 2, 1])])
def test_a_passing_prompt_leaves_a_row_for_the_oldest_waiting_one(
    max_num_seqs: int, order: list[int]
) -> None:
    harness = crowd(max_num_seqs=max_num_seqs)
    for first, length in enumerate((2000, 1900, 20)):
        harness.submit(str(first), prompt(first, length), max_tokens=1)
    assert order_of_admission(harness, 4) == order
    harness.run()


@pytest.mark.parametrize(("num_blocks", "order"), [(250, [0, 1, 2]), (260, [0, 2, 1])])
def test_a_passing_prompt_leaves_the_blocks_for_the_oldest_waiting_one(
    num_blocks: int, order: list[int]
) -> None:
    harness = crowd(num_blocks=num_blocks, max_model_len=2048)
    for first, length in enumerate((2000, 1900, 100)):
        harness.submit(str(first), prompt(first, length), max_tokens=1)
    assert order_of_admission(harness, 8)[:3] == order
    harness.run()


def test_a_prompt_that_passed_is_preempted_before_those_it_passed() -> None:
    harness = crowd(num_blocks=66, block_size=16, max_model_len=1056)
    harness.submit("long", prompt(0, 1000), max_tokens=40)
    harness.submit("short", prompt(1, 20), max_tokens=400)
    harness.run()
    assert list(harness.finishes) == ["long", "short"]
    assert harness.scheduler.gauges().preemptions > 0
    for id, first, length, new in (("long", 0, 1000, 40), ("short", 1, 20, 400)):
        assert harness.answers[id] == answer_alone(prompt(first, length), new, NO_STOPS)


def test_no_prompt_passes_one_that_waits_for_blocks() -> None:
    harness = crowd(num_blocks=64, max_model_len=1024)
    for first, length in enumerate((700, 700, 20)):
        harness.submit(str(first), prompt(first, length), max_tokens=1)
    assert [order_of_admission(harness, 1) for _ in range(3)] == [[0], [], [1, 2]]
    harness.run()
