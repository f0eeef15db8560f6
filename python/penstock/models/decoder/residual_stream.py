"""The residual stream of a decoder: the sum of the embedding and of all blocks' results."""

from __future__ import annotations

from typing import Generic, TypeVar

from penstock.kernels.ops_interface import Ops

Tensor = TypeVar("Tensor")


class ResidualStream(Generic[Tensor]):
    """The residual stream [T, W]. The result of a block is added together with the next norm, in
    one op. `eps`: that of all norms."""

    def __init__(self, ops: Ops[Tensor], start: Tensor, eps: float) -> None:
        self._ops = ops
        self._total = start
        self._added: Tensor | None = None
        self._eps = eps

    def norm(self, weight: Tensor) -> Tensor:
        """Return rms_norm(stream) * weight: [T, W]."""
        added, self._added = self._added, None
        if added is None:
            return self._ops.rms_norm(self._total, weight, self._eps)
        x, self._total = self._ops.add_rms_norm(added, self._total, weight, self._eps)
        return x

    def read(self) -> Tensor:
        """Return the stream: [T, W]."""
        added, self._added = self._added, None
        if added is not None:
            self._total = self._ops.add(self._total, added)
        return self._total

    def add(self, x: Tensor) -> None:
        """Add the result of a block: [T, W]."""
        if self._added is not None:
            self.read()
        self._added = x

    def gather(self, rows: Tensor) -> None:
        """Keep only the tokens with the indices `rows`: [S, W]."""
        self._total = self._ops.gather_rows(self._total, rows)
        if self._added is not None:
            self._added = self._ops.gather_rows(self._added, rows)
