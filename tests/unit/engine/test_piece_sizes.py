"""The size of pieces follows the measured speed of the towers."""

from __future__ import annotations

import math

import pytest

from penstock.engine.media.piece_sizes import PieceSizes
from penstock.models.towers.piece_budget import MOST_OPERATIONS

ROW_OPERATIONS = 5e5


def run_piece(sizes: PieceSizes, seconds: float, operations_per_s: float) -> float:
    """Compute a piece that is allowed `seconds`. Return the seconds that it takes."""
    sizes.allow(seconds)
    next(sizes.budget.slices(10_000, ROW_OPERATIONS))
    took = sizes.budget.taken / operations_per_s
    sizes.observe(took)
    return took


@pytest.mark.parametrize("operations_per_s", [5e9, 4e10])
def test_pieces_take_the_allowed_time_after_some_measurements(operations_per_s: float) -> None:
    sizes = PieceSizes()
    for _ in range(60):
        took = run_piece(sizes, 0.005, operations_per_s)
    assert 0.0045 <= took <= 0.00505


def test_the_first_pieces_are_short() -> None:
    assert run_piece(PieceSizes(), 0.005, 1e11) < 0.005


def test_one_interrupted_piece_does_not_spoil_the_measure() -> None:
    sizes = PieceSizes()
    for _ in range(60):
        before = run_piece(sizes, 0.005, 1e11)
    sizes.allow(0.005)
    next(sizes.budget.slices(10_000, ROW_OPERATIONS))
    sizes.observe(30.0)
    assert run_piece(sizes, 0.005, 1e11) > before / 2


def test_a_piece_of_unknown_operations_changes_nothing() -> None:
    sizes = PieceSizes()
    sizes.allow(0.005)
    before = sizes.budget.operations
    sizes.observe(1.0)
    sizes.allow(0.005)
    assert sizes.budget.operations == before


def test_without_a_limit_pieces_are_as_large_as_possible() -> None:
    sizes = PieceSizes()
    sizes.allow(math.inf)
    assert sizes.budget.operations == MOST_OPERATIONS
