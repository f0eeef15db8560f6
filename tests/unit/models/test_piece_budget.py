"""The pieces of towers have the size that the engine allows before each of them."""

from __future__ import annotations

import math

import pytest

from penstock.models.towers.piece_budget import MOST_OPERATIONS, MOST_ROWS, PieceBudget, most_rows


@pytest.mark.parametrize(
    ("operations", "rows"), [(0, 16), (1599, 16), (4799, 32), (4800, 48), (math.inf, MOST_ROWS)]
)
def test_a_piece_has_whole_units_of_rows_that_fit(operations: float, rows: int) -> None:
    assert PieceBudget(operations).rows(100) == rows


def test_the_largest_pieces_do_not_depend_on_the_current_budget() -> None:
    assert most_rows(MOST_OPERATIONS / 64) == 64


def test_slices_cover_all_rows_in_order_and_are_nearly_equal() -> None:
    budget = PieceBudget(4800)
    slices = list(budget.slices(100, 100))
    assert slices == [slice(0, 48), slice(48, 80), slice(80, 100)]


def test_each_slice_has_the_size_allowed_when_it_is_read() -> None:
    budget = PieceBudget(1600)
    slices = budget.slices(100, 100)
    assert next(slices) == slice(0, 16)
    budget.operations = 6400
    assert next(slices) == slice(16, 64)
    budget.operations = 0
    assert next(slices) == slice(64, 80)


def test_the_operations_of_the_last_slice_are_known() -> None:
    budget = PieceBudget(4800)
    taken = [budget.taken for _ in budget.slices(100, 100)]
    assert taken == [4800, 3200, 2000]
