"""The interface of a runtime whose weights can be studied and changed while it serves."""

from __future__ import annotations

from typing import Protocol

from penstock.kernels.column_squares import Squares
from penstock.quant.importance import CHUNK_SIZE, ImportanceMatrix


class LiveWeights(Protocol):
    """The weights of a loaded decoder."""

    @property
    def num_linears(self) -> int:
        """The number of matrices whose inputs `collect` sums, each stack of experts counted
        once."""
        ...

    def collect(self, squares: Squares | None) -> None:
        """Add the inputs of all linear layers of later steps to `squares`; None: stop. Call this
        between steps. Steps have the same results meanwhile, but take longer."""
        ...

    def importance(
        self,
        squares: Squares,
        datasets: tuple[str, ...] = (),
        chunk_count: int = 0,
        chunk_size: int = CHUNK_SIZE,
    ) -> ImportanceMatrix:
        """Return collected sums as an importance matrix; see its fields."""
        ...
