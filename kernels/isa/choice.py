"""Chooses the levels of a model from measured times. Knows no kernel: trials are given.

The widest level of the machine serves unless another one is faster by a tenth: where two are even,
noise decides nothing, and machines of one kind choose alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange

BUDGET_S: Final = 0.09
"""No trial begins after so long: then all of the measurement takes at most a tenth of a second."""

ROWS: Final[tuple[tuple[int, int | None], ...]] = ((1, 1), (4, 7), (16, 31), (64, None))
"""Rows that products are measured with, and the most rows that each of them speaks for. More than
the last go through a plan in blocks of about so many."""

_MARGIN: Final = 0.9  # of the default's time: what a rival has to stay below
_MOST_ROUNDS: Final = 12
_LEAST_RUNS: Final = 3  # of a trial, after the one that warms it up
_HOPELESS: Final = 2.5  # times slower than the fastest: measured no more

Kind: TypeAlias = Literal["products", "attention", "other"]


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured: the work of a kind, with the arithmetic of the level `own`, computed by
    `isa` wherever that gives the same bits, over `rows` rows."""

    kind: Kind
    own: str
    isa: str
    rows: int


@dataclass(frozen=True, slots=True)
class Trial:
    """`run` computes the cell once."""

    cell: Cell
    run: Callable[[], object]


class Clock(Protocol):
    """Seconds."""

    def now(self) -> float: ...

    def seconds(self, trial: Trial) -> float:
        """Run a trial and tell how long it took."""
        ...


class SystemClock:
    """The monotonic clock of this machine."""

    def now(self) -> float:
        return time.perf_counter()

    def seconds(self, trial: Trial) -> float:
        begin = time.perf_counter()
        trial.run()
        return time.perf_counter() - begin


Times: TypeAlias = Mapping[Cell, float]
"""Seconds of each trial."""


def measure(trials: Sequence[Trial], clock: Clock, deadline: float) -> dict[Cell, float] | None:
    """Seconds of each trial: the lower quartile of its runs, for what disturbs a run only adds.
    None where `deadline` came before every trial that may win had runs enough.

    Rounds run every trial once, forwards and backwards in turn, so that what slows the machine for
    a while slows all alike. The first run of a trial warms up.
    """
    samples: dict[Cell, list[float]] = {trial.cell: [] for trial in trials}
    running = list(trials)
    for number in range(_MOST_ROUNDS):
        for trial in running if number % 2 == 0 else reversed(running):
            taken = samples[trial.cell]
            if clock.now() + min(taken, default=0.0) > deadline:
                return _quartiles(samples) if number > _LEAST_RUNS else None
            taken.append(clock.seconds(trial))
        running = _hopeful(running, samples)
    return _quartiles(samples)


def choose(times: Times, levels: Sequence[str], experts_spread: float = 1.0) -> IsaSelection:
    """The fastest of `levels` (narrowest first) for each kind, and for each range of rows.

    One arithmetic is chosen for all products of the model, by the geometric mean over the ranges of
    what they take; within that arithmetic each range has a level of its own. `experts_spread`:
    tokens of a step for each row that one expert gets.
    """
    products = _arithmetic("products", times, levels)
    ranges = _ranges(products, times, levels)
    spread = tuple(_spread(one, experts_spread) for one in ranges)
    return IsaSelection(
        products=products,
        attention=_arithmetic("attention", times, levels),
        other=_arithmetic("other", times, levels),
        linear=ranges,
        experts=spread if experts_spread > 1 else (),
    )


def _spread(one: RowRange, factor: float) -> RowRange:
    most_rows = None if one.most_rows is None else int(one.most_rows * factor)
    return RowRange(most_rows, one.level)


def _quartiles(samples: Mapping[Cell, list[float]]) -> dict[Cell, float]:
    runs = {cell: sorted(taken[1:] or taken) for cell, taken in samples.items()}
    return {cell: taken[len(taken) // 4] for cell, taken in runs.items()}


def _hopeful(running: Sequence[Trial], samples: Mapping[Cell, list[float]]) -> list[Trial]:
    """The trials that are not far slower than another of the same kind and rows. A first run tells
    nothing."""
    fastest: dict[tuple[Kind, int], float] = {}
    for cell, taken in samples.items():
        alike = cell.kind, cell.rows
        fastest[alike] = min(fastest.get(alike, math.inf), *taken)
    return [
        trial
        for trial in running
        if len(samples[trial.cell]) < _LEAST_RUNS
        or min(samples[trial.cell]) <= _HOPELESS * fastest[trial.cell.kind, trial.cell.rows]
    ]


def _arithmetic(kind: Kind, times: Times, levels: Sequence[str]) -> str:
    """The level that this kind of work is computed like; the widest one of those whose bits are
    the same."""
    mine = {cell.own for cell in times if cell.kind == kind}
    owns = [level for level in reversed(levels) if level in mine]
    rows = {cell.rows for cell in times if cell.kind == kind}
    best, best_score = owns[0] if owns else levels[-1], _MARGIN
    for own in owns[1:]:
        ratios = [
            min(_each(kind, own, count, times).values())
            / min(_each(kind, owns[0], count, times).values())
            for count in rows
        ]
        score = math.prod(ratios) ** (1 / len(ratios))
        if score < best_score:
            best, best_score = own, score
    return best


def _each(kind: Kind, own: str, rows: int, times: Times) -> dict[str, float]:
    """Seconds by level."""
    return {
        cell.isa: seconds
        for cell, seconds in times.items()
        if (cell.kind, cell.own, cell.rows) == (kind, own, rows)
    }


def _ranges(own: str, times: Times, levels: Sequence[str]) -> tuple[RowRange, ...]:
    """The level of each range of rows; none where `own` serves them all."""
    ranges: list[RowRange] = []
    for rows, most_rows in ROWS:
        each = _each("products", own, rows, times)
        if not each:
            return ()
        level = min(each, key=lambda one: (each[one], -levels.index(one)))
        if each[level] >= _MARGIN * each[own]:
            level = own
        if ranges and ranges[-1].level == level:
            ranges.pop()
        ranges.append(RowRange(most_rows, level))
    return () if [one.level for one in ranges] == [own] else tuple(ranges)
