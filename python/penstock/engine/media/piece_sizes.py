"""Sizes the pieces of towers by the time that they may take."""

from __future__ import annotations

from typing import Final

from penstock.models.towers.piece_budget import MOST_OPERATIONS, PieceBudget

_FIRST_RATE: Final = 2e10
"""Operations per second before any measurement: few, so that the first pieces are short."""
_FORGETTING: Final = 1 / 8
_OUTLIER: Final = 4.0


class PieceSizes:
    """Sets the size of each piece from the measured speed of earlier ones.

    - `budget`: is given to the towers.
    """

    def __init__(self) -> None:
        self.budget = PieceBudget()
        self._operation_s = 1 / _FIRST_RATE

    def allow(self, seconds: float) -> None:
        """Let the next piece take about `seconds`; `math.inf` for the largest piece."""
        self.budget.operations = min(seconds / self._operation_s, MOST_OPERATIONS)
        self.budget.taken = 0.0

    def observe(self, seconds: float) -> None:
        """Record that the last piece took `seconds`. If it took far longer than expected, because
        the machine did something else, `_OUTLIER` times the expected time is recorded."""
        if self.budget.taken <= 0.0:
            return
        measured = min(seconds / self.budget.taken, _OUTLIER * self._operation_s)
        self._operation_s += _FORGETTING * (measured - self._operation_s)
