"""The choice of ISAs from times, with a fake clock: no kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.kernels.isa.choice import (
    BUDGET_S,
    MEASURED_ROWS,
    PROMPT_ROWS,
    Cell,
    Kind,
    Trial,
    choose_isas,
    measure,
)
from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange
from tests.support.fake_clock import FakeClock, prefers

ISAS = ["avx2", "avx_vnni", "avx512", "avx512_bf16", "amx"]
# arithmetic -> ISAs that give its bits, as on a processor with tiles, for a model in Q4_1.
PRODUCTS = {
    "amx": ["amx"],
    "avx512_bf16": ["avx512_bf16"],
    "avx512": ["avx2", "avx_vnni", "avx512", "avx512_bf16"],
}
KINDS: list[Kind] = ["attention", "other"]


def trials() -> list[Trial]:
    cells = [
        Cell("products", arithmetic, isa, rows)
        for arithmetic, served_by in PRODUCTS.items()
        for isa in served_by
        for rows, _ in MEASURED_ROWS
    ]
    cells += [
        Cell(kind, arithmetic, arithmetic, rows)
        for kind in KINDS
        for arithmetic in ISAS
        for rows in (1, 64)
    ]
    return [Trial(cell, lambda: None) for cell in cells]


def all_of(isa: str) -> IsaSelection:
    """Return the selection of one ISA for a model whose prompts were not measured in tiles."""
    return replace(IsaSelection.all_of(isa), prompts="")


def chosen(cost: Callable[[Cell], float], experts_spread: float = 1.0) -> IsaSelection:
    clock = FakeClock(cost)
    times = measure(trials(), clock, clock.now() + BUDGET_S)
    assert times is not None
    return choose_isas(times, ISAS, experts_spread)


@pytest.mark.parametrize("isa", ISAS)
def test_each_isa_can_win_attention_and_other_kernels(isa: str) -> None:
    isas = chosen(prefers(isa))
    assert (isas.attention, isas.other) == (isa, isa)


@pytest.mark.parametrize("isa", PRODUCTS)
def test_each_arithmetic_can_win_the_products(isa: str) -> None:
    isas = chosen(lambda cell: 1e-5 if cell.arithmetic == isa else 2e-5)
    assert isas.products == isa and isas.linear == ()


@pytest.mark.parametrize("isa", PRODUCTS["avx512"])
@pytest.mark.parametrize("index", range(len(MEASURED_ROWS)))
def test_each_isa_can_win_each_range_of_rows(isa: str, index: int) -> None:
    rows, most_rows = MEASURED_ROWS[index]

    def cost(cell: Cell) -> float:
        if cell.arithmetic != "avx512":
            return 4e-5
        return 1e-5 if cell.isa == isa and cell.rows == rows else 2e-5

    isas = chosen(cost)
    assert isas.products == "avx512"
    serving = next(
        (one.level for one in isas.linear if one.most_rows is None or one.most_rows >= rows),
        isas.products,
    )
    assert serving == isa
    if isa != "avx512":
        assert RowRange(most_rows, isa) in isas.linear
        assert {one.level for one in isas.linear} == {isa, "avx512"}


def test_neighbouring_ranges_of_one_isa_are_merged() -> None:
    def cost(cell: Cell) -> float:
        if cell.arithmetic != "avx512":
            return 4e-5
        return 1e-5 if cell.isa == ("avx2" if cell.rows < 16 else "avx512_bf16") else 2e-5

    assert chosen(cost).linear == (RowRange(7, "avx2"), RowRange(None, "avx512_bf16"))


def test_a_mixture_spreads_its_rows_over_its_experts() -> None:
    cost = prefers("avx2")
    isas = chosen(
        lambda cell: cost(cell) if cell.arithmetic == "avx512" and cell.rows < 16 else 4e-5, 8.0
    )
    assert isas.linear == (RowRange(7, "avx2"), RowRange(None, "avx512"))
    assert isas.experts == (RowRange(56, "avx2"), RowRange(None, "avx512"))


@pytest.mark.parametrize(("one_row", "more_rows", "wins"), [(3, 1, True), (1, 3, False)])
def test_an_arithmetic_has_to_win_over_all_rows(one_row: int, more_rows: int, wins: bool) -> None:
    def cost(cell: Cell) -> float:
        if cell.arithmetic != "amx":
            return 2e-5
        return 1e-5 * (one_row if cell.rows == 1 else more_rows)

    assert (chosen(cost).products == "amx") == wins


@pytest.mark.parametrize("ahead", [1.0, 0.93])
def test_widest_isa_serves_unless_another_is_clearly_faster(ahead: float) -> None:
    isas = chosen(lambda cell: 2e-5 if cell.arithmetic == cell.isa == "amx" else 2e-5 * ahead)
    assert isas == all_of("amx")


def test_interrupted_runs_do_not_affect_the_choice() -> None:
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


def test_far_slower_isas_are_not_measured_again() -> None:
    clock = FakeClock(lambda cell: 1e-4 if cell.arithmetic == "avx2" else 1e-5)
    times = measure(trials(), clock, clock.now() + BUDGET_S)
    assert times is not None
    runs = [clock.runs.count(trial.cell) for trial in trials() if trial.cell.arithmetic == "avx2"]
    others = [clock.runs.count(trial.cell) for trial in trials() if trial.cell.arithmetic != "avx2"]
    assert max(runs) < min(others)


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize(("share", "wins"), [(0.5, True), (0.85, True), (0.95, False), (2, False)])
def test_prompts_are_multiplied_in_tiles_if_a_row_then_takes_clearly_less(
    products: str, share: float, wins: bool
) -> None:
    """Beside the products that win, and in spite of tiles that are faster beside others."""
    cells = [Cell("prompts", arithmetic, "amx", PROMPT_ROWS) for arithmetic in PRODUCTS]
    rows, _ = MEASURED_ROWS[-1]

    def cost(cell: Cell) -> float:
        if cell.kind == "prompts":
            own = share if cell.arithmetic == products else 2.5 - share
            return 1e-5 * own * PROMPT_ROWS / rows
        return 1e-5 if cell.arithmetic == products else 2e-5

    clock = FakeClock(cost)
    measured = [*trials(), *(Trial(cell, lambda: None) for cell in cells)]
    times = measure(measured, clock, clock.now() + BUDGET_S)
    assert times is not None
    isas = choose_isas(times, ISAS)
    assert (isas.products, isas.prompts) == (products, "amx" if wins else "")


def test_name_of_an_arithmetic_names_the_isa_of_prompts() -> None:
    own = IsaSelection("avx512", "avx512", "avx512", prompts="amx")
    assert own.arithmetic == "avx512+amx"
    assert IsaSelection.all_of("amx").arithmetic == "amx+amx"
    assert IsaSelection.all_of("avx512").arithmetic == "avx512"


def test_name_of_an_arithmetic_omits_ranges_that_change_no_bit() -> None:
    mixed = IsaSelection("amx", "avx512", "avx512")
    assert mixed.arithmetic == "amx.avx512.avx512"
    assert IsaSelection("avx2", "avx2", "avx2", (RowRange(None, "avx512"),)).arithmetic == "avx2"
