"""The residual stream of a decoder: the sum of the embedding and of all blocks' results."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.kernels.ops_interface import Ops
from penstock.models.decoder.norm import Norm

Tensor = TypeVar("Tensor")


class ResidualStream(Generic[Tensor]):
    """The residual stream [T, W]. The result of a block is added together with the next norm, in
    one op. `parallel`: further streams [T, W] beside it (see `AltUpSpec`)."""

    def __init__(self, ops: Ops[Tensor], start: Tensor) -> None:
        self._ops = ops
        self._total = start
        self._added: Tensor | None = None
        self.parallel: tuple[Tensor, ...] = ()

    def norm(self, norm: Norm[Tensor]) -> Tensor:
        """Return the normalized stream: [T, W]."""
        added, self._added = self._added, None
        if added is None:
            return norm.of(self._ops, self._total)
        x, self._total = norm.of_sum(self._ops, added, self._total)
        return x

    def read(self) -> Tensor:
        """Return the stream: [T, W]."""
        added, self._added = self._added, None
        if added is not None:
            self._total = self._ops.add(self._total, added)
        return self._total

    def add(self, x: Tensor) -> None:
        """Add the result of a block: [T, W]."""
        self.read()
        self._added = x

    def scale(self, factor: float) -> None:
        """Multiply the stream, to which a block's result has just been added, by `factor`."""
        added, self._added = self._added, None
        assert added is not None
        self._total = self._ops.scaled_sum(self._total, added, factor)

    def restart(self, start: Tensor, parallel: tuple[Tensor, ...]) -> None:
        """Replace the stream and the parallel streams."""
        self._total, self._added, self.parallel = start, None, parallel

    def gather(self, rows: Tensor) -> None:
        """Keep only the tokens with the indices `rows`: [S, W]."""
        self._total = self._ops.gather_rows(self._total, rows)
        if self._added is not None:
            self._added = self._ops.gather_rows(self._added, rows)
        self.parallel = tuple(self._ops.gather_rows(one, rows) for one in self.parallel)
