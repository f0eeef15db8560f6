"""Projectors: the layers between a vision transformer and the width of the language model."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes
from penstock.models.towers.activation import activate
from penstock.models.towers.packed_layers import Norm
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.models.towers.vision_spec import NormKind, VisionActivation
from penstock.models.towers.vision_weights import TowerNorm
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import take_rows

Tensor = TypeVar("Tensor")

Reduction: TypeAlias = Literal["patches", "channels", "mean"]
"""The row that a square of patches becomes. "patches": the patches one after another, row by row.
"channels": the same elements ordered by channel first. "mean": the mean of the patches."""


@dataclass(frozen=True, slots=True)
class ProjectorLayer:
    """A linear layer of a projector.

    - `name`: the name of its tensors without `.weight` and `.bias`.
    - `outputs`: the number of outputs.
    - `activation`: is applied to the outputs.
    - `is_transposed`: the tensor is [inputs, outputs], and its name is `name` without `.weight`.
    - `gate_last`: the second half of the outputs is the gate of a gated activation.
    - `norm_name`: the name of an RMSNorm after the activation, with the eps of the projector; "":
      no norm.
    """

    name: str
    outputs: int
    bias: bool = True
    activation: VisionActivation | None = None
    is_transposed: bool = False
    gate_last: bool = False
    norm_name: str = ""

    @property
    def width(self) -> int:
        """The elements of a row of the result."""
        gated = self.activation is not None and self.activation.endswith("_mul")
        return self.outputs // 2 if gated else self.outputs


@dataclass(frozen=True, slots=True)
class ProjectorSpec:
    """The configuration of a projector: squares of patches become one row, then linear layers.

    - `roots`: the prefixes that may precede every name.
    - `inputs`: the width of the tower's states.
    - `merge`: the patches on a side of a square.
    - `norm`, `norm_name`: the norm before the linear layers; None: no norm.
    - `norm_of`: the norm is applied to the patches, or to the rows that squares became.
    - `norm_offset`: is added to the norm weights of the file.
    """

    roots: tuple[str, ...]
    inputs: int
    layers: tuple[ProjectorLayer, ...]
    merge: int = 1
    reduction: Reduction = "patches"
    norm: NormKind | None = None
    norm_name: str = ""
    norm_of: Literal["patches", "squares"] = "squares"
    norm_eps: float = 1e-5
    norm_offset: float = 0.0

    @property
    def columns(self) -> int:
        """The elements of a row after the reduction."""
        return self.inputs if self.reduction == "mean" else self.inputs * self.merge**2

    @property
    def width(self) -> int:
        """The elements of a row of the result."""
        return self.layers[-1].width if self.layers else self.columns

    @property
    def operations(self) -> int:
        """The operations of the linear layers for one row of the result."""
        inputs = [self.columns, *(layer.width for layer in self.layers)]
        return 2 * sum(a * b.outputs for a, b in zip(inputs, self.layers, strict=False))

    def rows_of(self, grid: tuple[int, int]) -> int:
        """Return the number of rows of the result for a grid of (rows, columns) of patches."""
        return (grid[0] // self.merge) * (grid[1] // self.merge)

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        limits = {
            "projector inputs": (self.columns, MAX_WIDTH),
            "patches that a projector merges": (self.merge, 64),
        }
        limits |= {f"outputs of {layer.name}": (layer.outputs, MAX_WIDTH) for layer in self.layers}
        check_sizes(where, limits)


class ProjectorWeights:
    """Reads the weights of a projector. Raises ModelError naming a tensor that is missing or has a
    wrong shape."""

    def __init__(self, checkpoint: Checkpoint, spec: ProjectorSpec, dtype: WeightType) -> None:
        self._spec = spec
        shapes = _shapes(spec)
        root = find_root(spec.roots, next(iter(shapes), ""), checkpoint)
        self._tensors = TowerTensors(checkpoint, root, shapes, dtype)

    @property
    def size_bytes(self) -> int:
        """The bytes of the tensors in memory."""
        return self._tensors.size_bytes

    def norm(self) -> TowerNorm | None:
        """Return the norm before the linear layers."""
        spec = self._spec
        if spec.norm is None:
            return None
        weight = self._tensors.vector(f"{spec.norm_name}.weight") + np.float32(spec.norm_offset)
        bias = self._tensors.vector(f"{spec.norm_name}.bias") if spec.norm == "layer" else None
        return TowerNorm(weight, bias)

    def norm_after(self, layer: ProjectorLayer) -> TowerNorm | None:
        """Return the norm after the activation of a layer."""
        if not layer.norm_name:
            return None
        return TowerNorm(self._tensors.vector(f"{layer.norm_name}.weight"), None)

    def linear(self, layer: ProjectorLayer) -> Linear:
        """Return a linear layer, whose first half of outputs is the gate of a gated
        activation."""
        if layer.gate_last:
            return _halves_swapped(self._tensors.linear([layer.name], biased=layer.bias))
        if not layer.is_transposed:
            return self._tensors.linear([layer.name], biased=layer.bias)
        stored = dequantize(self._tensors.matrix(layer.name))
        bias = self._tensors.vector(f"{layer.name}.bias") if layer.bias else None
        return Linear((Dense(np.ascontiguousarray(stored.T), "f32"),), bias)


class Projector(Generic[Tensor]):
    """A projector whose weights are packed for one kernel backend."""

    def __init__(self, spec: ProjectorSpec, weights: ProjectorWeights, ops: Ops[Tensor]) -> None:
        self.spec = spec
        self._norm = Norm.packed(ops, weights.norm(), spec.norm_eps)
        self._layers = [
            (
                ops.pack_linear(weights.linear(one)),
                one,
                Norm.packed(ops, weights.norm_after(one), spec.norm_eps),
            )
            for one in spec.layers
        ]

    def project(
        self,
        ops: Ops[Tensor],
        states: Tensor,
        grids: Sequence[tuple[int, int]],
        budget: PieceBudget,
    ) -> Generator[None, None, Tensor]:
        """Return the rows of the language model, [M, width], with a `yield` after each piece.

        - `states`: [N, inputs], the patches of several images without class tokens.
        - `grids`: (rows, columns) of the patches of each image. Patches beyond whole squares are
          left out.
        """
        spec, x = self.spec, states
        if self._norm is not None and spec.norm_of == "patches":
            x = self._norm.apply(ops, x)
        reduced: Any = self._reduce(ops, x, grids)
        yield
        rows: Any = ops.constant(np.empty((len(reduced), spec.width), np.float32))
        for piece in budget.slices(len(reduced), spec.operations):
            rows[piece] = self._layers_of(ops, reduced[piece])
            yield
        result: Tensor = rows
        return result

    def _layers_of(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        spec = self.spec
        if self._norm is not None and spec.norm_of == "squares":
            x = self._norm.apply(ops, x)
        for weight, layer, norm in self._layers:
            x = ops.linear(x, weight)
            if layer.activation is not None:
                x = activate(ops, x, layer.activation)
            if norm is not None:
                x = norm.apply(ops, x)
        return x

    def _reduce(self, ops: Ops[Tensor], x: Any, grids: Sequence[tuple[int, int]]) -> Tensor:
        spec = self.spec
        if spec.merge == 1:
            result: Tensor = x
            return result
        order = square_order(grids, spec.merge)
        x = ops.gather_rows(x, ops.constant(order))
        each = spec.merge**2
        if spec.reduction == "mean":
            starts = np.arange(0, len(order) + 1, each, dtype=np.int32)
            return ops.mean_rows(x, ops.constant(starts))
        if spec.reduction == "channels":
            x = x.reshape(-1, each, spec.inputs).swapaxes(1, 2)
        merged: Tensor = x.reshape(-1, spec.columns)
        return merged


def square_order(grids: Sequence[tuple[int, int]], merge: int) -> npt.NDArray[np.int32]:
    """Return the indices of all patches ordered by squares of `merge` by `merge` patches: squares
    row by row, and inside a square row by row. Patches beyond whole squares are left out."""
    parts, start = [], 0
    for rows, columns in grids:
        index = np.arange(start, start + rows * columns, dtype=np.int32).reshape(rows, columns)
        high, wide = rows // merge, columns // merge
        whole = index[: high * merge, : wide * merge].reshape(high, merge, wide, merge)
        parts.append(whole.transpose(0, 2, 1, 3).reshape(-1))
        start += rows * columns
    if not sum(map(len, parts)):
        raise ModelError(f"grids {tuple(grids)} have no square of {merge} by {merge} patches")
    return np.concatenate(parts)


def _shapes(spec: ProjectorSpec) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    columns = spec.columns
    for layer in spec.layers:
        if layer.is_transposed:
            shapes[layer.name] = (columns, layer.outputs)
        else:
            shapes[f"{layer.name}.weight"] = (layer.outputs, columns)
        if layer.bias:
            shapes[f"{layer.name}.bias"] = (layer.outputs,)
        columns = layer.width
        if layer.norm_name:
            shapes[f"{layer.norm_name}.weight"] = (columns,)
    if spec.norm is not None:
        width = spec.inputs if spec.norm_of == "patches" else spec.columns
        shapes[f"{spec.norm_name}.weight"] = (width,)
        if spec.norm == "layer":
            shapes[f"{spec.norm_name}.bias"] = (width,)
    return shapes


def _halves_swapped(linear: Linear) -> Linear:
    """Return a linear layer with the second half of its outputs first."""
    (matrix,), bias = linear.parts, linear.bias
    order = np.roll(np.arange(matrix.shape[0]), matrix.shape[0] // 2)
    return Linear((take_rows(matrix, order),), None if bias is None else bias[order])
