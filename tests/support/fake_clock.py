"""A clock that tells what a test says, so that a test decides which level is fastest."""

from __future__ import annotations

from collections.abc import Callable

from penstock.kernels.isa.choice import Cell, Trial


class FakeClock:
    """`cost` says how many seconds a cell takes; what is run in truth makes no difference. Its time
    passes with the runs alone."""

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
