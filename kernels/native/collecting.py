"""A backend of kernel calls that also sums the squares of the inputs of matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.kernels.column_squares import ColumnSquares, Squares, add_rows
from penstock.kernels.native.backend import EagerBackend, Flagged
from penstock.kernels.weights import Experts


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names of the tensors of packed experts, and facts about their layers.

    - `opening`, `down`: as in `Experts`.
    - `gated`: the first layer has gates.
    - `scales_input`: the shares scale the input of the experts.
    """

    opening: tuple[str, ...]
    down: str
    gated: bool
    scales_input: bool

    @classmethod
    def of(cls, weights: Experts) -> ExpertNames:
        """Return the names of experts that are being packed."""
        scales_input = weights.shares_scale == "input"
        return cls(weights.opening_names, weights.down_name, bool(weights.gate), scales_input)


PackedNames = Mapping[int, "tuple[str, ...] | ExpertNames"]
"""`id` of a packed weight -> the names of its tensors in the checkpoint."""


class CollectingBackend(EagerBackend):
    """Runs each kernel call at once, and adds the inputs of linear layers and experts to `squares`.
    The results have the same bits as without. `names`: the weights to collect for."""

    def __init__(self, kernels: Any, pool: Any, names: PackedNames, squares: Squares) -> None:
        super().__init__(kernels, pool)
        self._names = names
        self._squares = squares

    def call(
        self,
        kernel: str,
        tensors: Sequence[Any],
        integers: Sequence[int] = (),
        reals: Sequence[float] = (),
        weight: Any = None,
        only: Flagged | None = None,
    ) -> None:
        super().call(kernel, tensors, integers, reals, weight, only)
        names = self._names.get(id(weight))
        if isinstance(names, ExpertNames):
            if kernel == "experts":
                self._add_experts(names, tensors, weight)
        elif names and kernel == ("quantize_rows" if weight.has_affine else "linear_dense"):
            # A layer of integers and floats reads its input twice, and so does one that tells
            # prompt tokens apart. The input, all rows of it, counts once.
            add_rows(self._squares, names, tensors[0])

    def _add_experts(self, names: ExpertNames, tensors: Sequence[Any], weight: Any) -> None:
        """Add the inputs of both layers of experts. The kernel has sorted the pairs of token and
        expert by expert, and its scratch memory still has the results between the layers in this
        order, one row per pair."""
        x, chosen, shares, gate_up = tensors[0], tensors[1], tensors[2], tensors[5]
        experts, ff, width = weight.shape
        opened = 2 * ff if names.gated else ff
        inner = gate_up.reshape(-1)[: chosen.size * opened].reshape(chosen.size, opened)[:, :ff]
        begin = 0
        for expert, count in enumerate(np.bincount(chosen.reshape(-1), minlength=experts)):
            if not count:
                continue
            tokens, places = np.nonzero(chosen == expert)
            rows = x[tokens]
            if names.scales_input:
                rows = rows * shares[tokens, places][:, None]
            for name in dict.fromkeys(names.opening):
                self._expert_squares(name, experts, width).add(rows, expert)
            down = self._expert_squares(names.down, experts, ff)
            down.add(np.ascontiguousarray(inner[begin : begin + count]), expert)
            begin += int(count)

    def _expert_squares(self, name: str, experts: int, columns: int) -> ColumnSquares:
        if name not in self._squares:
            self._squares[name] = ColumnSquares(experts, columns)
        return self._squares[name]
