"""Alternating updates (AltUp, arXiv 2301.13310) of four parallel residual streams, and the learned
residual beside attention (LAuReL, arXiv 2411.07501). See `AltUpSpec`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.block_specs import AltUpSpec
from penstock.models.decoder.residual_stream import ResidualStream
from penstock.quant.weight_slices import linear_bytes, size_bytes

if TYPE_CHECKING:
    from penstock.models.decoder.mixer import LayerTensors
    from penstock.models.decoder.spec import DecoderSpec

Tensor = TypeVar("Tensor")
Vector = npt.NDArray[np.float32]

STREAMS: Final = 4
PROJECTION: Final = "altup_projection"
UNEMBEDDING: Final = "altup_unembedding"
LAYER_LINEARS: Final = (
    "altup_router",
    "altup_prediction",
    "altup_correction",
    "laurel_left",
    "laurel_right",
)
HALVED: Final = math.sqrt(0.5)
"""The factor on the sum of the residual stream with the learned residual."""
_LEAST_MEAN_SQUARE: Final = 1e-5


def model_shapes(spec: DecoderSpec) -> Mapping[str, Shape]:
    """Return the shape of each tensor outside of layers, by role. A name with {} is that of one
    tensor per stream except the first."""
    width = spec.hidden_size
    return dict.fromkeys((PROJECTION, UNEMBEDDING), (STREAMS - 1, width, width))


def layer_shapes(own: AltUpSpec, spec: DecoderSpec) -> Mapping[str, Shape]:
    """Return the shape of each tensor of a layer, by role."""
    width = spec.hidden_size
    return {
        "altup_router": (STREAMS, width),
        "altup_router_norm": (width,),
        "altup_prediction": (STREAMS**2, STREAMS),
        "altup_correction": (STREAMS, STREAMS),
        "altup_scale": (width,),
        "laurel_left": (own.laurel_rank, width),
        "laurel_right": (width, own.laurel_rank),
        "laurel_norm": (width,),
    }


@dataclass(frozen=True, slots=True)
class LayerAltUpWeights:
    """The weights of one layer: the linear layers in the order of LAYER_LINEARS, the norms of the
    router's input and of the learned residual, and the factors of the first stream."""

    linears: tuple[Linear, ...]
    router_norm: Vector
    laurel_norm: Vector
    scale: Vector

    @classmethod
    def read(cls, own: AltUpSpec, tensors: LayerTensors) -> LayerAltUpWeights:
        """Read the weights of one layer."""
        scale = tensors.array("altup_scale")
        return cls(
            tuple(map(tensors.linear, LAYER_LINEARS)),
            tensors.norm("altup_router_norm"),
            tensors.norm("laurel_norm"),
            scale if own.corrects_scale else np.ones_like(scale),
        )

    @property
    def size_bytes(self) -> int:
        """The bytes of the matrices."""
        return sum(map(linear_bytes, self.linears))


class LayerAltUp(Generic[Tensor]):
    """The packed weights of one layer."""

    def __init__(self, weights: LayerAltUpWeights, eps: float, ops: Ops[Tensor]) -> None:
        packed: list[Any] = [ops.pack_linear(linear) for linear in weights.linears]
        self._router, self._prediction, self._correction, self._left, self._right = packed
        # The router reads the normalized stream divided by its width.
        width = np.float32(len(weights.router_norm))
        self._router_norm = ops.constant(weights.router_norm / width)
        self._laurel_norm = ops.constant(weights.laurel_norm)
        self._scale = ops.constant(weights.scale)
        self._eps = eps

    def predict(self, ops: Ops[Tensor], stream: ResidualStream[Tensor]) -> None:
        """Replace the streams by their predictions before the layer. All four predictions become
        the parallel streams, for `correct`."""
        first = stream.read()
        coefficients = ops.linear(self._modalities(ops, first), self._prediction)
        second, third, fourth = stream.parallel
        predictions = ops.altup_predict(first, second, third, fourth, coefficients)
        stream.restart(predictions[0], predictions)

    def residual(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        """Return the learned residual of the layer's normalized input: [T, W] -> [T, W]."""
        y = ops.linear(ops.linear(x, self._left), self._right)
        return ops.add(x, ops.rms_norm(y, self._laurel_norm, self._eps))

    def correct(self, ops: Ops[Tensor], stream: ResidualStream[Tensor]) -> Tensor:
        """Correct the predictions with the result of the layer. Return the scaled first stream, the
        input of the layer's gate: [T, W]."""
        activated = stream.read()
        coefficients = ops.linear(self._modalities(ops, activated), self._correction)
        p0, p1, p2, p3 = stream.parallel
        first, *others, scaled = ops.altup_correct(
            p0, p1, p2, p3, activated, coefficients, self._scale
        )
        stream.restart(first, tuple(others))
        return scaled

    def _modalities(self, ops: Ops[Tensor], x: Tensor) -> Tensor:
        """Return the inputs of the coefficients: [T, W] -> [T, 4]."""
        normal = ops.rms_norm(x, self._router_norm, self._eps)
        return ops.tanh(ops.linear(normal, self._router))


class AltUp(Generic[Tensor]):
    """The packed projections at both ends of the parallel streams. `weight_bytes`: the bytes of
    their source arrays."""

    def __init__(self, tensors: LayerTensors, ops: Ops[Tensor]) -> None:
        ends = [tensors.stack(role) for role in (PROJECTION, UNEMBEDDING)]
        self.weight_bytes = sum(size_bytes(one) for end in ends for one in end)
        self._projections, self._unembeddings = (
            [ops.pack_linear(Linear((one,))) for one in end] for end in ends
        )

    def start(self, ops: Ops[Tensor], stream: ResidualStream[Tensor]) -> None:
        """Add three parallel streams, projected from the embedding."""
        first = stream.read()
        parallel = (self._projected(ops, first, one, first) for one in self._projections)
        stream.restart(first, tuple(parallel))

    def finish(self, ops: Ops[Tensor], stream: ResidualStream[Tensor]) -> None:
        """Replace the first stream by the mean of all, each projected back."""
        total = first = stream.read()
        for index, (one, weight) in enumerate(
            zip(stream.parallel, self._unembeddings, strict=True), start=2
        ):
            factor = 1 / STREAMS if index == STREAMS else 1.0
            total = ops.scaled_sum(total, self._projected(ops, one, weight, first), factor)
        stream.restart(total, ())

    def _projected(self, ops: Ops[Tensor], x: Tensor, weight: Any, like: Tensor) -> Tensor:
        return ops.match_magnitude(ops.linear(x, weight), like, _LEAST_MEAN_SQUARE)
