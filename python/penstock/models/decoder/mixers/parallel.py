"""Attention and Mamba2 side by side (Falcon-H1): both read the same input, and their results are
added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import StateShape
from penstock.kernels.weights import Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_block import LoraBlock, LoraLinear, joined, whole
from penstock.models.decoder.mixer import CacheSize, LayerTensors, ModelSizes, Vector
from penstock.models.decoder.mixers.mamba2 import Mamba2, Mamba2Spec, MambaWeights
from penstock.models.decoder.spec_limits import MAX_WIDTH, check_sizes
from penstock.quant.weight_slices import scaled

Tensor = TypeVar("Tensor")

_QKV = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class ParallelWeights:
    """The weights of one layer: `qkv` [(H + 2 K) D, W] and `out` [W, H D] of attention, and those
    of Mamba2."""

    qkv: Linear
    out: Linear
    mamba: MambaWeights


@dataclass(frozen=True, slots=True)
class ParallelSpec:
    """The configuration of attention beside Mamba2.

    - `heads`, `kv_heads`, `head_dim`: those of attention. `biased`: its projections have biases.
    - `in_factor`, `out_factor`: multiply the input and the result of attention. They are part of
      the weights after these are read.
    - `mamba`: the other block.
    """

    heads: int
    kv_heads: int
    head_dim: int
    mamba: Mamba2Spec
    biased: bool = False
    in_factor: float = 1.0
    out_factor: float = 1.0

    @property
    def cache(self) -> CacheSize:
        """See MixerSpec."""
        return CacheSize(self.kv_heads, self.head_dim, self.head_dim)

    @property
    def attention(self) -> tuple[int, int, int]:
        """See MixerSpec."""
        return self.heads, self.kv_heads, self.head_dim

    @property
    def state(self) -> StateShape:
        """See MixerSpec."""
        return self.mamba.state

    @property
    def linears(self) -> tuple[str, ...]:
        """See MixerSpec."""
        return (*_QKV, "attention_out", *self.mamba.linears)

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """None: see MixerSpec."""
        return ()

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """See MixerSpec."""
        width, inner = spec.hidden_size, self.heads * self.head_dim
        kv_rows = self.kv_heads * self.head_dim
        linears = {
            "qkv": LoraLinear(width, {"q": inner, "k": kv_rows, "v": kv_rows}),
            "output": LoraLinear(inner, {"o": width}),
        }
        targets = {f"self_attn.{role}_proj": whole(role, self.in_factor) for role in _QKV}
        targets["self_attn.o_proj"] = whole("o", self.out_factor)
        return joined([self.mamba.lora(spec), LoraBlock(linears, targets)])

    def check(self, spec: ModelSizes, where: str) -> None:
        """See MixerSpec."""
        limits = {
            "heads": (self.heads, MAX_WIDTH),
            "key-value heads": (self.kv_heads, MAX_WIDTH),
            "head dimension": (self.head_dim, MAX_WIDTH),
        }
        check_sizes(where, limits)
        self.mamba.check(spec, where)

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """See MixerSpec."""
        width, kv_rows = spec.hidden_size, self.kv_heads * self.head_dim
        rows = {"q": self.heads * self.head_dim, "k": kv_rows, "v": kv_rows}
        shapes: dict[str, Shape] = {role: (rows[role], width) for role in _QKV}
        shapes["attention_out"] = (width, rows["q"])
        if self.biased:
            shapes |= {f"{role}_bias": shape[:1] for role, shape in shapes.items()}
        return shapes | dict(self.mamba.shapes(spec))

    def inner_columns(self, spec: ModelSizes) -> int:
        """See MixerSpec: the projections, queries and result of attention beside Mamba2."""
        attention = (3 * self.heads + 2 * self.kv_heads) * self.head_dim + 2 * spec.hidden_size
        return attention + self.mamba.inner_columns(spec)

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> ParallelWeights:
        """See MixerSpec."""
        qkv = tuple(scaled(tensors.matrix(role), self.in_factor) for role in _QKV)
        out = scaled(tensors.matrix("attention_out"), self.out_factor)
        bias: Vector | None = None
        out_bias: Vector | None = None
        if self.biased:
            bias = np.concatenate([tensors.array(f"{role}_bias") for role in _QKV])
            out_bias = tensors.array("attention_out_bias") * np.float32(self.out_factor)
        return ParallelWeights(
            Linear(qkv, bias), Linear((out,), out_bias), self.mamba.read(tensors, spec)
        )

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> Parallel[Tensor]:
        """See MixerSpec."""
        return Parallel(self, weights, spec, ops)

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """See MixerSpec."""
        return weights.qkv, weights.out, *self.mamba.linear_weights(weights.mamba)


class Parallel(Generic[Tensor]):
    """Packed attention beside packed Mamba2. See `LoadedMixer`."""

    def __init__(
        self, own: ParallelSpec, weights: ParallelWeights, spec: ModelSizes, ops: Ops[Tensor]
    ) -> None:
        self._heads = own.heads, own.kv_heads, own.head_dim
        self._scale = spec.attention_scale or own.head_dim**-0.5
        self._qkv = ops.pack_linear(weights.qkv)
        self._out = ops.pack_linear(weights.out)
        self._mamba: Mamba2[Tensor] = own.mamba.pack(weights.mamba, spec, ops)

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute both blocks: [T, W] -> [T, W]."""
        ops, inputs, cache = step.ops, step.inputs, step.cache
        assert cache is not None
        states = self._mamba.project(step, self._mamba.mix(step, x))
        q = ops.rope_cache(
            step.linear(x, self._qkv, "qkv"), step.rope, inputs, cache, self._heads, None
        )
        y = ops.attention(q, inputs, cache, self._heads, self._scale, 0)
        return ops.add(states, step.linear(y, self._out, "output"))

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Return `x`: both blocks have projected their results."""
        return x
