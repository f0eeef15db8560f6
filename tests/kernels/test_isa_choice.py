"""The choice of levels from times, under a false clock: no kernel is run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.kernels.isa.choice import (
    BUDGET_S,
    ROWS,
    Cell,
    Kind,
    Trial,
    choose,
    measure,
)
from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange
from tests.support.fake_clock import FakeClock, prefers

LEVELS = ["avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"]
# Whose weights a level can serve: as on a processor with tiles, of a model of Q4_1.
PRODUCTS = {
    "amx": ["amx"],
    "avx512_bf16": ["avx512_bf16"],
    "avx512": ["avx2", "avx_vnni", "avx512", "avx512_bf16"],
}
KINDS: list[Kind] = ["attention", "other"]


def trials() -> list[Trial]:
    cells = [
        Cell("products", own, level, rows)
        for own, served_by in PRODUCTS.items()
        for level in served_by
        for rows, _ in ROWS
    ]
    cells += [Cell(kind, own, own, rows) for kind in KINDS for own in LEVELS for rows in (1, 64)]
    return [Trial(cell, lambda: None) for cell in cells]


def chosen(cost: Callable[[Cell], float], experts_spread: float = 1.0) -> IsaSelection:
    clock = FakeClock(cost)
    times = measure(trials(), clock, clock.now() + BUDGET_S)
    assert times is not None
    return choose(times, LEVELS, experts_spread)


@pytest.mark.parametrize("level", LEVELS)
def test_each_level_can_win_attention_and_all_else(level: str) -> None:
    levels = chosen(prefers(level))
    assert (levels.attention, levels.other) == (level, level)


@pytest.mark.parametrize("level", PRODUCTS)
def test_each_arithmetic_can_win_the_products(level: str) -> None:
    levels = chosen(lambda cell: 1e-5 if cell.own == level else 2e-5)
    assert levels.products == level and levels.linear == ()


@pytest.mark.parametrize("level", PRODUCTS["avx512"])
@pytest.mark.parametrize("index", range(len(ROWS)))
def test_each_level_can_win_each_range_of_rows(level: str, index: int) -> None:
    rows, most_rows = ROWS[index]

    def cost(cell: Cell) -> float:
        if cell.own != "avx512":
            return 4e-5
        return 1e-5 if cell.isa == level and cell.rows == rows else 2e-5

    levels = chosen(cost)
    assert levels.products == "avx512"
    serving = next(
        (one.level for one in levels.linear if one.most_rows is None or one.most_rows >= rows),
        levels.products,
    )
    assert serving == level
    if level != "avx512":
        assert RowRange(most_rows, level) in levels.linear
        assert {one.level for one in levels.linear} == {level, "avx512"}


def test_neighbouring_ranges_of_one_level_are_one() -> None:
    def cost(cell: Cell) -> float:
        if cell.own != "avx512":
            return 4e-5
        return 1e-5 if cell.isa == ("avx2" if cell.rows < 16 else "avx512_bf16") else 2e-5

    assert chosen(cost).linear == (RowRange(7, "avx2"), RowRange(None, "avx512_bf16"))


def test_a_mixture_spreads_its_rows_over_its_experts() -> None:
    cost = prefers("avx2")
    levels = chosen(
        lambda cell: cost(cell) if cell.own == "avx512" and cell.rows < 16 else 4e-5, 8.0
    )
    assert levels.linear == (RowRange(7, "avx2"), RowRange(None, "avx512"))
    assert levels.experts == (RowRange(56, "avx2"), RowRange(None, "avx512"))


@pytest.mark.parametrize(("one_row", "more_rows", "wins"), [(3, 1, True), (1, 3, False)])
def test_an_arithmetic_has_to_win_over_all_rows(one_row: int, more_rows: int, wins: bool) -> None:
    def cost(cell: Cell) -> float:
        if cell.own != "amx":
            return 2e-5
        return 1e-5 * (one_row if cell.rows == 1 else more_rows)

    assert (chosen(cost).products == "amx") == wins


@pytest.mark.parametrize("ahead", [1.0, 0.93])
def test_the_widest_level_serves_where_another_is_hardly_faster(ahead: float) -> None:
    levels = chosen(lambda cell: 2e-5 if cell.own == cell.isa == "amx" else 2e-5 * ahead)
    assert levels == IsaSelection.all_of("amx")


def test_what_disturbs_some_runs_decides_nothing() -> None:
    """Every third run is interrupted for as long as a hundred runs take."""
    count = 0

    def cost(cell: Cell) -> float:
        nonlocal count
        count += 1
        quiet = prefers("avx512")(cell)
        return quiet + (1e-3 if count % 3 == 0 else 0)

    assert chosen(cost) == IsaSelection.all_of("avx512")


def test_a_first_run_does_not_count() -> None:
    seen: set[Cell] = set()

    def cost(cell: Cell) -> float:
        cold = cell not in seen and cell.isa == "avx512"
        seen.add(cell)
        return 1e-3 if cold else prefers("avx512")(cell)

    assert chosen(cost) == IsaSelection.all_of("avx512")


@pytest.mark.parametrize("seconds", [1e-6, 1e-4, 3e-4, 1e-2])
def test_measuring_ends_in_time(seconds: float) -> None:
    clock = FakeClock(lambda cell: seconds)
    start = clock.now()
    measure(trials(), clock, start + BUDGET_S)
    assert clock.now() - start <= BUDGET_S + seconds


def test_a_machine_too_busy_to_be_measured_gives_no_times() -> None:
    clock = FakeClock(lambda cell: 1e-2)
    assert measure(trials(), clock, clock.now() + BUDGET_S) is None


def test_what_is_far_slower_is_measured_no_more() -> None:
    clock = FakeClock(lambda cell: 1e-4 if cell.own == "avx2" else 1e-5)
    times = measure(trials(), clock, clock.now() + BUDGET_S)
    assert times is not None
    runs = [clock.runs.count(trial.cell) for trial in trials() if trial.cell.own == "avx2"]
    others = [clock.runs.count(trial.cell) for trial in trials() if trial.cell.own != "avx2"]
    assert max(runs) < min(others)


def test_the_name_of_an_arithmetic_leaves_out_what_changes_no_bit() -> None:
    mixed = IsaSelection("amx", "avx512", "avx512")
    assert mixed.arithmetic == "amx.avx512.avx512"
    assert IsaSelection("avx2", "avx2", "avx2", (RowRange(None, "avx512"),)).arithmetic == "avx2"
