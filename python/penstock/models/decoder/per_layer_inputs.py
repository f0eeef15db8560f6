"""Per-layer inputs of a decoder: for each layer, a vector per token from an embedding and from a
projection of the token's input, which a gate adds to the residual stream. See
`PerLayerInputsSpec`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Float8, Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.activations import plain_activation
from penstock.models.decoder.block_specs import PerLayerInputsSpec
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import (
    column_step,
    linear_bytes,
    size_bytes,
    split_rows,
    take_columns,
    take_rows,
)

if TYPE_CHECKING:
    from penstock.models.decoder.mixer import LayerTensors
    from penstock.models.decoder.spec import DecoderSpec, FeedForwardActivation

Tensor = TypeVar("Tensor")
Vector = npt.NDArray[np.float32]

TABLE: Final = "input_table"
PROJECTION: Final = "inputs_projection"
LAYER_LINEARS: Final = ("input_gate", "input_projection")
"""Roles of matrices that may be quantized, beside PROJECTION."""


def model_shapes(own: PerLayerInputsSpec, spec: DecoderSpec) -> Mapping[str, Shape]:
    """Return the shape of each tensor outside of layers, by role."""
    columns = own.width * len(spec.layers)
    return {
        TABLE: (own.vocab_size, columns),
        PROJECTION: (columns, spec.hidden_size),
        "inputs_norm": (own.width,),
    }


def layer_shapes(own: PerLayerInputsSpec, spec: DecoderSpec) -> Mapping[str, Shape]:
    """Return the shape of each tensor of a layer, by role."""
    return {
        "input_gate": (own.width, spec.hidden_size),
        "input_projection": (spec.hidden_size, own.width),
        "input_norm": (spec.hidden_size,),
    }


@dataclass(frozen=True, slots=True)
class LayerInputWeights:
    """The weights with which a layer adds its input: the gate [P, W], the projection [W, P] and the
    norm [W] of its result."""

    gate: Linear
    projection: Linear
    norm: Vector

    @classmethod
    def read(cls, tensors: LayerTensors) -> LayerInputWeights:
        """Read the weights of one layer."""
        gate, projection = map(tensors.linear, LAYER_LINEARS)
        return cls(gate, projection, tensors.norm("input_norm"))

    @property
    def size_bytes(self) -> int:
        """The bytes of the matrices."""
        return linear_bytes(self.gate) + linear_bytes(self.projection)


class LayerInput(Generic[Tensor]):
    """The packed weights with which a layer adds its input."""

    def __init__(
        self,
        weights: LayerInputWeights,
        activation: FeedForwardActivation,
        eps: float,
        ops: Ops[Tensor],
    ) -> None:
        self._gate = ops.pack_linear(weights.gate)
        self._projection = ops.pack_linear(weights.projection)
        self._norm = ops.constant(weights.norm)
        self._activation = activation
        self._eps = eps

    def __call__(self, ops: Ops[Tensor], x: Tensor, own: Tensor) -> Tensor:
        """Return norm(projection(act(gate(x)) * own)): [T, W] -> [T, W]. `own`: [T, P], the layer's
        input."""
        gate = plain_activation(ops, self._activation, ops.linear(x, self._gate))
        projected = ops.linear(ops.multiply(gate, own), self._projection)
        return ops.rms_norm(projected, self._norm, self._eps)


class PerLayerInputs(Generic[Tensor]):
    """The packed tables and projections of all layers. `weight_bytes`: the bytes of their source
    arrays."""

    def __init__(
        self, own: PerLayerInputsSpec, spec: DecoderSpec, tensors: LayerTensors, ops: Ops[Tensor]
    ) -> None:
        layers = len(spec.layers)
        table, projection = tensors.matrix(TABLE), tensors.matrix(PROJECTION)
        self.weight_bytes = size_bytes(table) + size_bytes(projection)
        replaced = _replaced_rows(own, spec.vocab_size)
        self._tables: list[Any] = [
            ops.pack_embedding(_with_rows(part, replaced))
            for part in _column_parts(table, own.width, layers)
        ]
        self._projections: list[Any] = [
            ops.pack_linear(Linear((part,)))
            for part in split_rows(projection, [own.width] * layers)
        ]
        # Both parts of the sum are divided by the root of 2. The projections lack a factor of
        # 1 / sqrt(W), which the norm undoes except for its eps.
        self._norm = ops.constant(tensors.norm("inputs_norm") * np.float32(math.sqrt(0.5)))
        self._eps = spec.norm_eps * spec.hidden_size
        self._scale = math.sqrt(own.width / 2)

    def of_layer(self, index: int, ops: Ops[Tensor], tokens: Tensor, embedded: Tensor) -> Tensor:
        """Return the input of layer `index`: [T], [T, W] -> [T, P]. `embedded`: the inputs of the
        decoder's first layer."""
        projected = ops.linear(embedded, self._projections[index])
        context = ops.rms_norm(projected, self._norm, self._eps)
        own = ops.embedding(self._tables[index], tokens, self._scale)
        return ops.add(context, own)


def _replaced_rows(own: PerLayerInputsSpec, vocab_size: int) -> npt.NDArray[np.intp] | None:
    """Return the row of the table for each token, or None if it is the token's own for all."""
    rows = np.arange(max(own.vocab_size, vocab_size))
    missing = rows >= own.vocab_size
    missing[[token for token in own.media_tokens if token < len(rows)]] = True
    if not missing.any():
        return None
    rows[missing] = own.stand_in
    return rows


def _with_rows(table: Matrix, rows: npt.NDArray[np.intp] | None) -> Matrix:
    return table if rows is None else take_rows(table, rows)


def _column_parts(table: Matrix, width: int, count: int) -> list[Matrix]:
    """Split the columns of `table` into `count` parts of `width` columns. A table of 8-bit floats,
    which can only be multiplied, or whose parts would cut groups, becomes float32."""
    if isinstance(table, Float8) or width % column_step(table):
        table = Dense(dequantize(table), "f32")
    return [take_columns(table, slice(i * width, (i + 1) * width)) for i in range(count)]
