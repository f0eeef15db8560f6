"""The prefill budget of a mixed step follows the measured time of steps."""

from __future__ import annotations

import pytest

from penstock.scheduler.prefill_budget import (
    CALM_STRETCH,
    CROWDED_STEP_S,
    CROWDED_STRETCH,
    PrefillBudget,
)

FIXED_S, PER_TOKEN_S = 0.004, 0.0002


def seconds(tokens: int, *, slowdown: float = 1.0) -> float:
    return slowdown * (FIXED_S + PER_TOKEN_S * tokens)


def fitted(*sizes: int) -> PrefillBudget:
    prefill_budget = PrefillBudget(min_share=1)
    for tokens in sizes:
        prefill_budget.observe(tokens, seconds(tokens))
    return prefill_budget


@pytest.mark.parametrize("decodes", [1, 8, 32])
def test_a_full_prefill_budget_stretches_a_step_by_the_constant(decodes: int) -> None:
    share = fitted(512, 1, 1, 40).prefill_tokens(decodes, 1)
    ratio = seconds(decodes + share) / seconds(decodes)
    assert ratio == pytest.approx(CALM_STRETCH, abs=0.1)


@pytest.mark.parametrize("decodes", [1, 8, 32])
def test_if_more_requests_wait_than_decode_a_step_lasts_a_fixed_time(
    decodes: int,
) -> None:
    share = fitted(512, 1, 1, 40).prefill_tokens(decodes, decodes + 1)
    assert seconds(decodes + share) == pytest.approx(CROWDED_STEP_S, abs=2 * PER_TOKEN_S)


def test_the_more_requests_wait_the_longer_a_step_may_last() -> None:
    prefill_budget = fitted(512, 1, 1, 40)
    ratios = [seconds(8 + prefill_budget.prefill_tokens(8, n)) / seconds(8) for n in range(1, 9)]
    middle = (CALM_STRETCH + CROWDED_STRETCH) / 2
    expected = [CALM_STRETCH, None, middle, None, *[CROWDED_STRETCH] * 4]
    assert ratios == sorted(ratios)
    for ratio, wanted in zip(ratios, expected, strict=True):
        assert wanted is None or ratio == pytest.approx(wanted, abs=0.1)


def test_if_more_requests_wait_than_decode_slow_steps_are_stretched() -> None:
    prefill_budget = PrefillBudget(min_share=1)
    for tokens in (512, 1, 1, 40):
        prefill_budget.observe(tokens, seconds(tokens, slowdown=20))
    alone_s = seconds(8, slowdown=20)
    step_s = seconds(8 + prefill_budget.prefill_tokens(8, 9), slowdown=20)
    assert step_s / alone_s == pytest.approx(CROWDED_STRETCH, abs=0.1)


def test_many_steps_of_one_size_keep_the_measured_cost_of_a_token() -> None:
    prefill_budget = fitted(512, *[1] * 500)
    assert prefill_budget.per_token_s == pytest.approx(PER_TOKEN_S, rel=1e-3)
    assert prefill_budget.fixed_s == pytest.approx(FIXED_S, rel=1e-2)


def test_the_prefill_budget_shrinks_if_tokens_become_slower() -> None:
    prefill_budget, dearer = fitted(512, 1, 1), 2 * PER_TOKEN_S
    for _ in range(60):
        for tokens in (1, 1 + prefill_budget.prefill_tokens(1, 1)):
            prefill_budget.observe(tokens, FIXED_S + dearer * tokens)
    expected = (CALM_STRETCH - 1) * (FIXED_S + dearer) / dearer
    assert prefill_budget.prefill_tokens(1, 1) == pytest.approx(expected, abs=2)


def test_one_step_that_hung_has_little_effect() -> None:
    prefill_budget = fitted(512, *[1, 20] * 20)
    before = prefill_budget.prefill_tokens(8, 1)
    prefill_budget.observe(20, 30.0)
    assert before / 2 < prefill_budget.prefill_tokens(8, 1) < before * 2


def test_a_slow_machine_keeps_the_smallest_prefill_budget() -> None:
    prefill_budget = PrefillBudget(min_share=16)
    for tokens in (512, 1, 1):
        prefill_budget.observe(tokens, 0.001 * tokens)
    assert prefill_budget.prefill_tokens(1, 1) == 16


def test_the_prefill_budget_before_any_measurement_is_fixed() -> None:
    assert PrefillBudget(min_share=16).prefill_tokens(1, 1) == 64


def test_a_step_without_decodes_has_a_token_cost() -> None:
    """Also if the whole time of a step depends on its tokens."""
    prefill_budget = PrefillBudget(16)
    for tokens in (512, 1, 512, 1):
        prefill_budget.observe(tokens, tokens * 1e-3)
    assert prefill_budget.fixed_s == pytest.approx(0.0, abs=1e-6)
    assert prefill_budget.token_cost(0) == 1.0
    assert 0.0 < prefill_budget.token_cost(4) <= 1.0
