"""A fake clock, with which a test decides the fastest instruction set."""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.isa.choice import Cell, Trial


class FakeClock:
    """A clock on which each cell takes `cost` seconds, whatever runs in reality. Its time passes
    only with trials."""

    def __init__(self, cost: Callable[[Cell], float]) -> None:
        self._cost = cost
        self._now = 1000.0
        self.runs: list[Cell] = []

    def now(self) -> float:
        return self._now

    def seconds(self, trial: Trial) -> float:
        trial.run()
        self.runs.append(trial.cell)
        spent = self._cost(trial.cell)
        self._now += spent
        return spent


def prefers(level: str, seconds: float = 1e-5) -> Callable[[Cell], float]:
    """`level` takes half the time of the others, in its own arithmetic and in theirs."""
    return lambda cell: seconds if level in (cell.isa, cell.arithmetic) else 2 * seconds
