"""Chooses the ISAs for a model from measured times. It contains no kernels: the caller passes the
trials to measure.

The widest ISA of the machine is used unless another one is faster by more than a tenth. So noise
does not decide between two ISAs of equal speed, and machines of the same type make the same choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange

BUDGET_S: Final = 0.09
"""Seconds after which no trial starts, so that the whole measurement takes at most a tenth of a
second."""

MEASURED_ROWS: Final[tuple[tuple[int, int | None], ...]] = ((1, 1), (4, 7), (16, 31), (64, None))
"""(rows, most rows) of each measurement of matrix products: the time for `rows` rows decides for
calls of up to `most rows` rows; None: of any number. A plan splits a larger number of rows into
blocks of about the last `rows`."""

PROMPT_ROWS: Final = 128
"""Rows of the measurement of prompt tokens: a block of a plan that tells them apart."""

_MARGIN: Final = 0.9  # another ISA wins below this share of the default's time
_MOST_ROUNDS: Final = 12
_LEAST_RUNS: Final = 3  # fewest runs of a trial, without the first
_HOPELESS: Final = 2.5  # a trial this many times slower than the fastest is dropped

Kind: TypeAlias = Literal["products", "prompts", "attention", "other"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    `kind`: kind of work: matrix products, those of prompt tokens in bf16 tiles, attention, or other
    kernels.
    `arithmetic`: the ISA whose bits the results have.
    `isa`: the ISA whose kernels run, where they give the bits of `arithmetic`.
    `rows`: number of rows.
    """

    kind: Kind
    arithmetic: str
    isa: str
    rows: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The work of one measurement. Calling `run` does the work of `cell` once."""

    cell: Cell
    run: Callable[[], object]


class Clock(Protocol):
    """A source of time, in seconds."""

    def now(self) -> float: ...

    def seconds(self, trial: Trial) -> float:
        """Run a trial and return its duration in seconds."""
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
"""Measurement -> seconds."""


def measure(trials: Sequence[Trial], clock: Clock, deadline: float) -> dict[Cell, float] | None:
    """Run the trials and return the seconds of each: the lower quartile of its runs, since
    disturbances only add time. Return None if `deadline` came before every promising trial had
    enough runs.

    A round runs every trial once, alternately forwards and backwards, so that a temporary slowdown
    of the machine affects all trials alike. The first run of a trial is a warm-up.
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


def choose_isas(times: Times, isas: Sequence[str], experts_spread: float = 1.0) -> IsaSelection:
    """Return the fastest of `isas` (narrowest first) for each kind of work and for each range of
    rows.

    All matrix products of the model have the arithmetic of one ISA, which is chosen by the
    geometric mean of the times over all ranges of rows. Each range then uses the fastest ISA that
    gives the same bits. Prompt tokens are multiplied in bf16 tiles if that is faster than the
    products of the last range. `experts_spread`: tokens of a step divided by the tokens that one
    expert receives on average.
    """
    products = _arithmetic("products", times, isas)
    ranges = _ranges(products, times, isas)
    spread = tuple(_spread(one, experts_spread) for one in ranges)
    return IsaSelection(
        products=products,
        attention=_arithmetic("attention", times, isas),
        other=_arithmetic("other", times, isas),
        linear=ranges,
        experts=spread if experts_spread > 1 else (),
        prompts=_prompts(products, times),
    )


def _prompts(products: str, times: Times) -> str:
    """Return the ISA whose tiles multiply prompt tokens, beside products with the arithmetic of
    `products`; "" if these serve prompt tokens as well."""
    rows, _ = MEASURED_ROWS[-1]
    plain = _each("products", products, rows, times)
    tiles = _each("prompts", products, PROMPT_ROWS, times)
    if not plain or not tiles:
        return ""
    isa = min(tiles, key=lambda one: tiles[one])
    return isa if tiles[isa] / PROMPT_ROWS < _MARGIN * min(plain.values()) / rows else ""


def _spread(one: RowRange, factor: float) -> RowRange:
    most_rows = None if one.most_rows is None else int(one.most_rows * factor)
    return RowRange(most_rows, one.level)


def _quartiles(samples: Mapping[Cell, list[float]]) -> dict[Cell, float]:
    runs = {cell: sorted(taken[1:] or taken) for cell, taken in samples.items()}
    return {cell: taken[len(taken) // 4] for cell, taken in runs.items()}


def _hopeful(running: Sequence[Trial], samples: Mapping[Cell, list[float]]) -> list[Trial]:
    """Return the trials to measure further, without the trials that had enough runs and are far
    slower than the fastest trial of the same kind and number of rows."""
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


def _arithmetic(kind: Kind, times: Times, isas: Sequence[str]) -> str:
    """Return the ISA whose arithmetic this kind of work should have. ISAs that give the same bits
    are represented by the widest of them."""
    mine = {cell.arithmetic for cell in times if cell.kind == kind}
    arithmetics = [isa for isa in reversed(isas) if isa in mine]
    rows = {cell.rows for cell in times if cell.kind == kind}
    best, best_score = arithmetics[0] if arithmetics else isas[-1], _MARGIN
    for arithmetic in arithmetics[1:]:
        ratios = [
            min(_each(kind, arithmetic, count, times).values())
            / min(_each(kind, arithmetics[0], count, times).values())
            for count in rows
        ]
        score = math.prod(ratios) ** (1 / len(ratios))
        if score < best_score:
            best, best_score = arithmetic, score
    return best


def _each(kind: Kind, arithmetic: str, rows: int, times: Times) -> dict[str, float]:
    """Return ISA -> seconds for one kind of work, arithmetic and number of rows."""
    return {
        cell.isa: seconds
        for cell, seconds in times.items()
        if (cell.kind, cell.arithmetic, cell.rows) == (kind, arithmetic, rows)
    }


def _ranges(arithmetic: str, times: Times, isas: Sequence[str]) -> tuple[RowRange, ...]:
    """Return the fastest ISA for each range of rows; an empty tuple if `arithmetic` is the fastest
    for every range."""
    ranges: list[RowRange] = []
    for rows, most_rows in MEASURED_ROWS:
        each = _each("products", arithmetic, rows, times)
        if not each:
            return ()
        isa = min(each, key=lambda one: (each[one], -isas.index(one)))
        if each[isa] >= _MARGIN * each[arithmetic]:
            isa = arithmetic
        if ranges and ranges[-1].level == isa:
            ranges.pop()
        ranges.append(RowRange(most_rows, isa))
    return () if [one.level for one in ranges] == [arithmetic] else tuple(ranges)
