"""Sequences with a guide: waiting for it, forced tokens, its end and its errors."""

from __future__ import annotations

import pytest
from fake_runtime import Harness, ScriptedGuide, answer_alone

from penstock.base.errors import Overloaded
from penstock.dialog import Sampling
from penstock.scheduler import NewSequence

PROMPT = [1, 2, 3, 4, 5]


def free() -> frozenset[int]:
    return frozenset()


def prompt_whose_guided_answer(wanted: str) -> list[int]:
    """Return a prompt after which the scripted guide ends the answer as `wanted`."""
    for first in range(200):
        guide = ScriptedGuide((8,))
        prompt = [first % 50, first // 50, 3]
        answer = answer_alone(prompt, 30, free(), guide)
        ended = "error" if guide.error else "stop" if guide.ended else "length"
        if ended == wanted and len(answer) > 8:
            return prompt
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("wanted", ["stop", "error", "length"])
def test_the_guide_determines_how_an_answer_ends(wanted: str) -> None:
    prompt = prompt_whose_guided_answer(wanted)
    harness = Harness()
    harness.submit("a", prompt, 30, guide=ScriptedGuide((8,)))
    harness.run()
    assert harness.answers["a"] == answer_alone(prompt, 30, free(), ScriptedGuide((8,)))
    assert harness.finishes["a"] == wanted


def test_forced_tokens_need_no_step_each() -> None:
    prompt = prompt_whose_guided_answer("length")
    harness = Harness()
    harness.submit("a", prompt, 30, guide=ScriptedGuide((8,)))
    steps = 0
    while harness.step() is not None:
        steps += 1
    gauges = harness.scheduler.gauges()
    assert gauges.forced_tokens > 5
    assert gauges.generated_tokens == len(harness.answers["a"]) == 30
    assert steps == 30 - gauges.forced_tokens


def test_tokens_forced_at_the_start_are_computed_with_the_prompt() -> None:
    harness = Harness()
    harness.submit("a", PROMPT, 8, guide=ScriptedGuide((10, 11, 12)))
    plan = harness.step()
    assert plan is not None
    assert plan.admissions[0].token_ids == (*PROMPT, 10, 11, 12)
    assert plan.admissions[0].prompt_tokens == len(PROMPT)
    assert harness.answers["a"][:3] == [10, 11, 12]


def test_forced_tokens_beyond_max_tokens_are_cut() -> None:
    harness = Harness()
    harness.submit("a", PROMPT, 3, guide=ScriptedGuide((10, 11, 12, 13, 14)))
    harness.run()
    assert harness.answers["a"][:2] == [10, 11]
    assert len(harness.answers["a"]) <= 3


def test_no_token_is_forced_if_log_probabilities_are_requested() -> None:
    harness = Harness()
    new = NewSequence(
        "a",
        token_ids=(1,),
        sampling=Sampling(),
        seed=0,
        max_tokens=4,
        top_logprobs=0,
    )
    harness.scheduler.submit(new, guide=ScriptedGuide((10, 11)))
    plan = harness.scheduler.plan()
    assert plan is not None and plan.admissions[0].token_ids == (1,)


def test_an_unready_request_waits_and_others_pass_it() -> None:
    harness = Harness()
    harness.submit("held", PROMPT, 4, held=True)
    assert not harness.scheduler.has_work
    assert harness.scheduler.gauges().sequences_waiting == 1
    harness.submit("other", PROMPT, 4)
    harness.run()
    assert harness.finishes == {"other": "length"}
    assert harness.scheduler.make_ready("held", ScriptedGuide())
    harness.run()
    assert harness.answers["held"] == answer_alone(PROMPT, 4, free(), ScriptedGuide())


def test_an_unready_request_counts_in_the_queue() -> None:
    harness = Harness(max_queue=1, max_num_seqs=1)
    harness.submit("held", PROMPT, held=True)
    harness.submit("next", PROMPT, held=True)
    with pytest.raises(Overloaded):
        harness.submit("other", PROMPT)


def test_an_aborted_unready_request_cannot_be_made_ready() -> None:
    harness = Harness()
    harness.submit("held", PROMPT, held=True)
    assert harness.scheduler.abort("held", "error")
    assert not harness.scheduler.make_ready("held", ScriptedGuide())
    assert not harness.scheduler.has_work
    assert harness.scheduler.gauges().completed_error == 1


def test_a_preempted_sequence_keeps_its_guide() -> None:
    prompt = prompt_whose_guided_answer("length")
    harness = Harness(num_blocks=12, block_size=4, max_num_seqs=3, prefix_caching=False)
    for index in range(3):
        harness.submit(f"r{index}", prompt, 30, guide=ScriptedGuide((8,)))
    harness.run()
    assert harness.scheduler.gauges().preemptions > 0
    right = answer_alone(prompt, 30, free(), ScriptedGuide((8,)))
    assert all(harness.answers[f"r{index}"] == right for index in range(3))


def test_a_sequence_preempted_while_it_grows_is_not_in_the_plan() -> None:
    """Forced tokens may need several blocks; only the first of them was free."""
    prompt = prompt_whose_guided_answer("length")
    for num_blocks in range(36, 50):
        harness = Harness(num_blocks=num_blocks, block_size=1, max_num_seqs=2, prefix_caching=False)
        for index in range(2):
            harness.submit(f"r{index}", prompt, 30, guide=ScriptedGuide((8,)))
        harness.run()
        right = answer_alone(prompt, 30, free(), ScriptedGuide((8,)))
        assert all(answer == right for answer in harness.answers.values())
