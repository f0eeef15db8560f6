"""The gated short convolution of LFM2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import StateShape
from penstock.kernels.weights import Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_block import LoraBlock, LoraLinear, whole
from penstock.models.decoder.mixer import CacheSize, LayerTensors, ModelSizes, Vector
from penstock.models.decoder.mixers.sizes import StateKeys, check_state

Tensor = TypeVar("Tensor")


@dataclass(frozen=True, slots=True)
class ShortConvWeights:
    """The weights of one layer: `into` [3 W, W], `out` [W, W], `conv` [W, L], `bias` [W] or
    None."""

    into: Linear
    out: Linear
    conv: Vector
    bias: Vector | None


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """The configuration of a gated short convolution.

    - `width`: the channels, those of the model. `taps`: taps of the convolution.
    - `biased`: the convolution and both projections have biases.
    - `form`: the shape of the convolution in the file: "folder": [W, 1, L], "gguf": [W, L].
    """

    width: int
    taps: int
    biased: bool = False
    form: Literal["folder", "gguf"] = "folder"

    @property
    def cache(self) -> CacheSize | None:
        """None: there is no KV cache."""
        return None

    @property
    def attention(self) -> None:
        """None: there is no attention."""
        return None

    @property
    def state(self) -> StateShape:
        """See MixerSpec."""
        return StateShape(self.width, self.taps)

    @property
    def linears(self) -> tuple[str, ...]:
        """See MixerSpec."""
        return ("into", "out")

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """None: see MixerSpec."""
        return ()

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """See MixerSpec."""
        width = self.width
        linears = {
            "into": LoraLinear(width, {"into": 3 * width}),
            "out": LoraLinear(width, {"out": width}),
        }
        targets = {"conv.in_proj": whole("into"), "conv.out_proj": whole("out")}
        return LoraBlock(linears, targets)

    def check(self, spec: ModelSizes, where: str) -> None:
        """See MixerSpec."""
        key = "conv_L_cache" if self.form == "folder" else "shortconv.l_cache"
        check_state(self.state, StateKeys(key), where)

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """See MixerSpec."""
        width, taps = self.width, self.taps
        shapes: dict[str, Shape] = {
            "into": (3 * width, width),
            "conv": (width, 1, taps) if self.form == "folder" else (width, taps),
            "out": (width, width),
        }
        if self.biased:
            shapes |= {"into_bias": (3 * width,), "conv_bias": (width,), "out_bias": (width,)}
        return shapes

    def inner_columns(self, spec: ModelSizes) -> int:
        """See MixerSpec: the projection and the result."""
        return 4 * self.width

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> ShortConvWeights:
        """See MixerSpec."""
        return ShortConvWeights(
            tensors.linear("into", bias="into_bias" if self.biased else None),
            tensors.linear("out", bias="out_bias" if self.biased else None),
            tensors.array("conv").reshape(self.width, self.taps),
            tensors.array("conv_bias") if self.biased else None,
        )

    @property
    def gguf_form(self) -> ShortConvSpec | None:
        """See WritableMixerSpec. GGUF files have no biases."""
        return None if self.biased else replace(self, form="gguf")

    def in_gguf(self, role: str, tensors: LayerTensors) -> Matrix | Vector:
        """See WritableMixerSpec."""
        if role == "conv":
            return tensors.array(role).reshape(self.width, self.taps)
        return tensors.matrix(role)

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> ShortConv[Tensor]:
        """See MixerSpec."""
        return ShortConv(weights, ops)

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """See MixerSpec."""
        return weights.into, weights.out


class ShortConv(Generic[Tensor]):
    """A packed gated short convolution. See `LoadedMixer`."""

    def __init__(self, weights: ShortConvWeights, ops: Ops[Tensor]) -> None:
        self._into = ops.pack_linear(weights.into)
        self._out = ops.pack_linear(weights.out)
        self._conv = ops.constant(np.ascontiguousarray(weights.conv))
        self._bias = None if weights.bias is None else ops.constant(weights.bias)

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the convolution without the last projection: [T, W] -> [T, W]."""
        ops, state = step.ops, step.state
        assert state is not None and state.conv is not None
        bcv = step.linear(x, self._into, "into")
        return ops.gated_conv(bcv, self._conv, self._bias, step.inputs, state.conv)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the last projection: [T, W] -> [T, W]."""
        return step.linear(x, self._out, "out")
