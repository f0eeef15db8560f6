"""The measured cost of draft tokens: exact without noise, not moved by stalls, and forgotten."""

from __future__ import annotations

import pytest

from penstock.scheduler.step_costs import StepCosts


def costs_of(plain: list[float], drafted: list[tuple[int, float]]) -> StepCosts:
    """Return the costs after steps of two rows."""
    costs = StepCosts()
    for duration_s in plain:
        costs.observe(2, 0, duration_s)
    for tokens, duration_s in drafted:
        costs.observe(2, tokens, duration_s)
    return costs


def test_the_cost_is_the_added_time_by_the_time_per_token_of_a_plain_step() -> None:
    costs = costs_of([0.010] * 3, [(1, 0.011), (2, 0.012), (4, 0.014)])
    assert costs.token_cost(2) == pytest.approx(0.001 / 0.005)
    assert costs.step_token_s(2) == pytest.approx(0.005)


def test_nothing_is_known_of_steps_of_another_size() -> None:
    costs = costs_of([0.010] * 3, [(1, 0.011)] * 3)
    assert costs.token_cost(1) is None and costs.token_cost(4) is None
    assert costs.step_token_s(4) is None


def test_draft_tokens_are_tried_once_plain_steps_are_known() -> None:
    assert costs_of([0.010] * 2, []).token_cost(2) is None
    assert costs_of([0.010] * 3, []).token_cost(2) == 0.25


def test_stalls_of_half_of_the_steps_do_not_change_the_cost() -> None:
    costs = costs_of([0.010, 0.300] * 10, [(2, 0.012), (2, 0.500)] * 10)
    assert costs.token_cost(2) == pytest.approx(0.001 / 0.005)


def test_a_token_that_costs_a_step_still_has_a_cost_below_one() -> None:
    assert costs_of([0.010] * 3, [(1, 0.030)] * 3).token_cost(2) == 0.99


def test_a_plain_step_is_wanted_sooner_while_none_is_known() -> None:
    costs = costs_of([], [(1, 0.011)] * 7)
    assert not costs.take_plain(2)
    costs.observe(2, 1, 0.011)
    assert not costs.take_plain(9)
    assert costs.take_plain(2)
    costs = costs_of([0.010] * 3, [(1, 0.011)] * 47)
    assert not costs.take_plain(2)
    costs.observe(2, 1, 0.011)
    assert costs.take_plain(2)
    assert not costs.take_plain(2), "steps with prompts must not stop drafts for good"


def test_old_steps_are_forgotten_when_there_are_newer_ones() -> None:
    costs = costs_of([0.010] * 96, [(1, 0.020)] * 3)
    for _ in range(600):
        costs.observe(2, 0, 0.010)
    assert costs.token_cost(2) == 0.99
    for _ in range(3):
        costs.observe(2, 1, 0.011)
    assert costs.token_cost(2) == pytest.approx(0.2)
