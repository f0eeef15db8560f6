"""Mamba2 (arXiv 2405.21060): a causal convolution over inputs and state projections, a linear
recurrence with a decay per head, and a gated norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Literal, TypeVar

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.ops_interface import Ops
from penstock.kernels.recurrent_state import StateShape
from penstock.kernels.weights import Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.layer_step import LayerStep
from penstock.models.decoder.lora_block import Factor, LoraBlock, LoraLinear, inside, stacked, whole
from penstock.models.decoder.mixer import CacheSize, LayerTensors, ModelSizes, Vector
from penstock.models.decoder.mixers.sizes import GGUF_KEYS, StateKeys, check_state
from penstock.quant.weight_slices import scaled, split_rows

Tensor = TypeVar("Tensor")

_KEYS: Final = StateKeys(
    taps="mamba_d_conv (conv_kernel)",
    groups="mamba_n_groups (n_groups)",
    heads="mamba_n_heads (mamba_num_heads)",
    key_dim="mamba_d_state (ssm_state_size)",
    value_dim="mamba_d_head (mamba_head_dim)",
)
PLAIN: Final = (1.0, 1.0, 1.0, 1.0, 1.0)
GatedNorm = Literal["gate first", "norm first", "gate"]
"""The order of gate and norm of the output; "gate": only the gate."""


@dataclass(frozen=True, slots=True)
class MambaWeights:
    """The weights of one layer.

    - `z` [H D, W], `xbc` [H D + 2 G N, W], `dt` [H, W], `out` [W, H D].
    - `conv` [H D + 2 G N, L], `conv_bias`, or None. `constants` [3, H]: exp(A_log), dt_bias, D.
    - `norm` [H D], or None.
    """

    z: Linear
    xbc: Linear
    dt: Linear
    out: Linear
    conv: Vector
    conv_bias: Vector | None
    constants: Vector
    norm: Vector | None


@dataclass(frozen=True, slots=True)
class Mamba2Spec:
    """The configuration of Mamba2.

    - `heads`, `head_dim`: heads, and their size. `groups`, `state_dim`: groups of heads with common
      state projections, and the size of these.
    - `taps`: taps of the convolution. `conv_bias`, `in_bias`, `out_bias`: which layers have biases.
    - `dt_limits`: the least and the most time step.
    - `norm`: the order of gate and norm of the output; "gate": only the gate. The norm is computed
      per group, with `norm_eps`.
    - `factors`: multiply the gates, inputs, both state projections and time steps, and
      `out_factor` the result. They are part of the weights after these are read.
    - `form`: "folder": convolutions have the shape [C, 1, L], and decays are logarithms. "gguf":
      [C, L], decays are -exp(logarithm), and vectors have two dimensions.
    """

    heads: int
    head_dim: int
    groups: int
    state_dim: int
    taps: int
    norm_eps: float
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    dt_limits: tuple[float, float] = (0.0, math.inf)
    norm: GatedNorm = "gate first"
    factors: tuple[float, float, float, float, float] = PLAIN
    out_factor: float = 1.0
    form: Literal["folder", "gguf"] = "folder"

    @property
    def inner_size(self) -> int:
        """The number of inputs of all heads, H D."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return self.inner_size + 2 * self.groups * self.state_dim

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
        return StateShape(
            self.channels, self.taps, self.heads, self.groups, self.state_dim, self.head_dim
        )

    @property
    def linears(self) -> tuple[str, ...]:
        """See MixerSpec."""
        return ("into", "out")

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """None: see MixerSpec."""
        return ()

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """See MixerSpec. The module is called mamba, in Nemotron-H mixer."""
        width, inner = spec.hidden_size, self.inner_size
        z, *xbc, dt = self.factors
        rows = {"z": inner, "xbc": self.channels, "dt": self.heads}
        factors: dict[str, Factor] = {"z": z, "dt": dt}
        factors["xbc"] = np.repeat(np.array(xbc, np.float32), self._parts[1:4])
        linears = {
            "xbc": LoraLinear(width, {"xbc": rows["xbc"]}),
            "dt": LoraLinear(width, {"dt": rows["dt"]}),
            "z": LoraLinear(width, {"z": rows["z"]}),
            "out": LoraLinear(inner, {"out": width}),
        }
        targets = {"in_proj": stacked(rows, factors), "out_proj": whole("out", self.out_factor)}
        return LoraBlock(linears, inside(targets, "mamba", "mixer"))

    def check(self, spec: ModelSizes, where: str) -> None:
        """See MixerSpec."""
        check_state(self.state, _KEYS if self.form == "folder" else GGUF_KEYS, where)
        if self.norm_eps <= 0:
            raise ModelError(f"{where}: norm eps {self.norm_eps} of a mixer must be above 0")
        least, most = self.dt_limits
        if not 0 <= least < most:
            raise ModelError(f"{where}: the limits {least} and {most} of time steps do not ascend")
        if not all(0 < abs(factor) < math.inf for factor in (*self.factors, self.out_factor)):
            raise ModelError(f"{where}: the factors {self.factors} of a mixer must not be 0")

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """See MixerSpec."""
        heads, inner, channels = self.heads, self.inner_size, self.channels
        gguf = self.form == "gguf"
        per_head: Shape = (heads, 1) if gguf else (heads,)
        shapes: dict[str, Shape] = {
            "into": (inner + channels + heads, spec.hidden_size),
            "conv": (channels, self.taps) if gguf else (channels, 1, self.taps),
            "decay": per_head,
            "skip": per_head,
            "dt_bias": (heads,),
            "out": (spec.hidden_size, inner),
        }
        if self.norm != "gate":
            shapes["norm"] = (self.groups, inner // self.groups) if gguf else (inner,)
        biases = {
            "conv_bias": (self.conv_bias, channels),
            "into_bias": (self.in_bias, inner + channels + heads),
            "out_bias": (self.out_bias, spec.hidden_size),
        }
        return shapes | {role: (size,) for role, (present, size) in biases.items() if present}

    def inner_columns(self, spec: ModelSizes) -> int:
        """See MixerSpec: the projection, the results of convolution, scan and norm."""
        return 2 * self.channels + 3 * self.inner_size + self.heads

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> MambaWeights:
        """See MixerSpec."""
        z, xbc, dt = self._projections(tensors)
        decay, skip = tensors.array("decay").reshape(-1), tensors.array("skip").reshape(-1)
        with np.errstate(over="ignore"):
            decay = np.exp(decay) if self.form == "folder" else -decay
        out = scaled(tensors.matrix("out"), self.out_factor)
        out_bias = None
        if self.out_bias:
            out_bias = tensors.array("out_bias") * np.float32(self.out_factor)
        return MambaWeights(
            z,
            xbc,
            dt,
            Linear((out,), out_bias),
            tensors.array("conv").reshape(self.channels, self.taps),
            tensors.array("conv_bias") if self.conv_bias else None,
            np.stack([decay, tensors.array("dt_bias"), skip]),
            None if self.norm == "gate" else tensors.array("norm").reshape(-1),
        )

    @property
    def _parts(self) -> tuple[int, ...]:
        """The rows of gates, inputs, both state projections and time steps in their matrix."""
        state_rows = self.groups * self.state_dim
        return (self.inner_size, self.inner_size, state_rows, state_rows, self.heads)

    def _projections(self, tensors: LayerTensors) -> tuple[Linear, Linear, Linear]:
        """Return the projections of gates, of the convolution's inputs, and of time steps."""
        whole, ends = tensors.matrix("into"), (self.inner_size, self.inner_size + self.channels)
        if self.factors == PLAIN:
            z, *xbc, dt = split_rows(whole, (self.inner_size, self.channels, self.heads))
        else:
            parts = zip(split_rows(whole, self._parts), self.factors, strict=True)
            z, *xbc, dt = (scaled(part, factor) for part, factor in parts)
        if not self.in_bias:
            return Linear((z,)), Linear(tuple(xbc)), Linear((dt,))
        factors = np.repeat(np.array(self.factors, np.float32), self._parts)
        biases = np.split(tensors.array("into_bias") * factors, ends)
        return Linear((z,), biases[0]), Linear(tuple(xbc), biases[1]), Linear((dt,), biases[2])

    @property
    def gguf_form(self) -> Mamba2Spec | None:
        """See WritableMixerSpec. GGUF files have no factors."""
        plain = self.factors == PLAIN and self.out_factor == 1.0
        return replace(self, form="gguf") if plain else None

    def in_gguf(self, role: str, tensors: LayerTensors) -> Matrix | Vector:
        """See WritableMixerSpec."""
        if role in self.linears:
            return tensors.matrix(role)
        values = tensors.array(role)
        match role:
            case "conv":
                return values.reshape(self.channels, self.taps)
            case "decay":
                return -np.exp(values).reshape(-1, 1)
            case "skip":
                return values.reshape(-1, 1)
            case "norm":
                return values.reshape(self.groups, -1)
        return values

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> Mamba2[Tensor]:
        """See MixerSpec."""
        return Mamba2(self, weights, ops)

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """See MixerSpec."""
        return weights.z, weights.xbc, weights.dt, weights.out


class Mamba2(Generic[Tensor]):
    """A packed Mamba2 block. See `LoadedMixer`."""

    def __init__(self, spec: Mamba2Spec, weights: MambaWeights, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._z = ops.pack_linear(weights.z)
        self._xbc = ops.pack_linear(weights.xbc)
        self._dt = ops.pack_linear(weights.dt)
        self._out = ops.pack_linear(weights.out)
        self._conv = ops.constant(np.ascontiguousarray(weights.conv))
        self._conv_bias = None if weights.conv_bias is None else ops.constant(weights.conv_bias)
        self._constants = ops.constant(weights.constants)
        self._norm = None if weights.norm is None else ops.constant(weights.norm)

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the block without its last projection: [T, W] -> [T, H D]."""
        spec, ops, inputs, state = self._spec, step.ops, step.inputs, step.state
        assert state is not None and state.conv is not None and state.matrix is not None
        xbc = step.linear(x, self._xbc, "xbc")
        xbc = ops.causal_conv(xbc, self._conv, self._conv_bias, inputs, state.conv)
        dt, z = step.linear(x, self._dt, "dt"), step.linear(x, self._z, "z")
        heads = (spec.groups, spec.heads, spec.state_dim, spec.head_dim)
        y = ops.state_space_scan(
            xbc, dt, self._constants, inputs, state.matrix, heads, spec.dt_limits
        )
        if self._norm is None:
            return ops.silu_gate(y, z)
        if spec.norm == "gate first":
            return ops.gate_then_norm(y, z, self._norm, spec.norm_eps, spec.groups)
        return ops.norm_then_gate(y, z, self._norm, spec.norm_eps, spec.groups)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the last projection: [T, H D] -> [T, W]."""
        return step.linear(x, self._out, "out")
