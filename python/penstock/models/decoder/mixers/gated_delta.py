"""The gated delta net (arXiv 2412.06464) of Qwen3-Next, Qwen3.5 and OLMo hybrids: a causal
convolution over queries, keys and values, a linear recurrence, and a gated norm per head.

The file's layouts differ; weights are brought into one order when they are read: heads of values
that share keys are neighbours.
"""

from __future__ import annotations

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
from penstock.models.decoder.lora_block import LoraBlock, LoraLinear
from penstock.models.decoder.mixer import CacheSize, LayerTensors, ModelSizes, Vector
from penstock.models.decoder.mixers.delta_rows import (
    Order,
    grouped_heads,
    joined_targets,
    rows_by_group,
    rows_of_heads,
    separate_targets,
)
from penstock.models.decoder.mixers.sizes import GGUF_KEYS, StateKeys, check_state
from penstock.quant.weight_slices import split_rows, take_column_blocks, take_rows

Tensor = TypeVar("Tensor")

_KEYS: Final = StateKeys(
    taps="linear_conv_kernel_dim",
    groups="linear_num_key_heads",
    heads="linear_num_value_heads",
    key_dim="linear_key_head_dim",
    value_dim="linear_value_head_dim",
)


@dataclass(frozen=True, slots=True)
class DeltaLayout:
    """How a file stores a gated delta net.

    - `projections`: "apart": the tensors "qkv", "z", "b" and "a". "gates by group": "qkv", "z", and
      one tensor "ba" with b and a of each group in turn. "by group": "qkvz" with queries, keys,
      values and gates of each group in turn, and "ba". "separate": as "apart", but also with one
      tensor for each of queries, keys and values, and for their convolutions.
    - `heads`: "grouped": the heads of values that share keys are neighbours. "tiled": head h has
      the keys of group h % groups.
    - `form`: "folder": convolutions have the shape [C, 1, L], and decays are logarithms. "gguf":
      [C, L], and the decays are -exp(logarithm).
    """

    projections: Literal["apart", "gates by group", "by group", "separate"] = "apart"
    heads: Literal["grouped", "tiled"] = "grouped"
    form: Literal["folder", "gguf"] = "folder"


TILED: Final = DeltaLayout(heads="tiled", form="gguf")
"""The layout in GGUF files of Qwen3.5."""
GATES_BY_GROUP: Final = DeltaLayout("gates by group", form="gguf")
"""The layout in GGUF files of Qwen3-Next."""
_IN_GGUF: Final = {DeltaLayout(): TILED, DeltaLayout("by group"): GATES_BY_GROUP}


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """The weights of one layer.

    - `qkv` [2 G N + H D, W], `z` [H D, W], `gates` [2 H, W]: b, then a. `out` [W, H D].
    - `conv` [2 G N + H D, L], `decay` [2, H]: exp(A_log), then dt_bias. `norm` [D].
    """

    qkv: Linear
    z: Linear
    gates: Linear
    out: Linear
    conv: Vector
    decay: Vector
    norm: Vector


@dataclass(frozen=True, slots=True)
class GatedDeltaSpec:
    """The configuration of a gated delta net.

    - `groups`, `heads`: heads of keys and of values. `key_dim`, `value_dim`: their sizes.
    - `taps`: taps of the convolution.
    - `norm_eps`: that of the gated norm.
    - `beta_scale`: the largest share of its old value that a token replaces; 2 allows negative
      eigenvalues.
    """

    groups: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    norm_eps: float
    beta_scale: float = 1.0
    layout: DeltaLayout = DeltaLayout()

    @property
    def key_rows(self) -> int:
        """The number of rows of all keys."""
        return self.groups * self.key_dim

    @property
    def value_rows(self) -> int:
        """The number of rows of all values."""
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """The channels of the convolution."""
        return 2 * self.key_rows + self.value_rows

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
            self.channels, self.taps, self.heads, self.groups, self.key_dim, self.value_dim
        )

    @property
    def linears(self) -> tuple[str, ...]:
        """See MixerSpec."""
        match self.layout.projections:
            case "apart":
                return ("qkv", "z", "b", "a", "out")
            case "gates by group":
                return ("qkv", "z", "ba", "out")
            case "by group":
                return ("qkvz", "ba", "out")
            case "separate":
                return ("q", "k", "v", "z", "b", "a", "out")

    @property
    def float_matrices(self) -> tuple[str, ...]:
        """None: see MixerSpec."""
        return ()

    def lora(self, spec: ModelSizes) -> LoraBlock:
        """See MixerSpec. Modules have grouped heads."""
        width, values, heads = spec.hidden_size, self.value_rows, self.heads
        parts = {"qkv": self.channels}
        if self.layout.projections == "separate":
            parts = {"q": self.key_rows, "k": self.key_rows, "v": values}
        linears = {
            "qkv": LoraLinear(width, parts),
            "gates": LoraLinear(width, {"b": heads, "a": heads}),
            "z": LoraLinear(width, {"z": values}),
            "out": LoraLinear(values, {"out": width}),
        }
        if self.layout.projections == "separate":
            return LoraBlock(linears, separate_targets())
        return LoraBlock(linears, joined_targets(self._grouped_rows, self._grouped_gates))

    def check(self, spec: ModelSizes, where: str) -> None:
        """See MixerSpec."""
        keys = _KEYS if self.layout.form == "folder" else GGUF_KEYS
        check_state(self.state, keys, where)
        if not self.norm_eps > 0 or not 0 < self.beta_scale <= 2:
            raise ModelError(f"{where}: norm eps {self.norm_eps} of a mixer must be above 0")

    def shapes(self, spec: ModelSizes) -> Mapping[str, Shape]:
        """See MixerSpec."""
        width, heads = spec.hidden_size, self.heads
        keys, values = self.key_rows, self.value_rows
        rows = {
            "q": keys,
            "k": keys,
            "v": values,
            "qkv": self.channels,
            "qkvz": self.channels + values,
            "z": values,
            "b": heads,
            "a": heads,
            "ba": 2 * heads,
        }
        shapes: dict[str, Shape] = {
            role: (rows[role], width) for role in self.linears if role != "out"
        }
        shapes |= {"decay": (heads,), "dt_bias": (heads,), "norm": (self.value_dim,)}
        for role, channels in self._convolutions.items():
            folder = self.layout.form == "folder"
            shapes[role] = (channels, 1, self.taps) if folder else (channels, self.taps)
        return shapes | {"out": (width, values)}

    @property
    def _convolutions(self) -> dict[str, int]:
        """The roles of the convolutions, in the order of their channels, and their channels."""
        if self.layout.projections != "separate":
            return {"conv": self.channels}
        return {"q_conv": self.key_rows, "k_conv": self.key_rows, "v_conv": self.value_rows}

    def inner_columns(self, spec: ModelSizes) -> int:
        """See MixerSpec: q, k, v before and after the convolution, gates, and values thrice."""
        return 2 * self.channels + 3 * self.value_rows + 2 * self.heads

    def read(self, tensors: LayerTensors, spec: ModelSizes) -> DeltaWeights:
        """See MixerSpec."""
        qkv, z, gates = self._projections(tensors)
        decay, bias = tensors.array("decay"), tensors.array("dt_bias")
        with np.errstate(over="ignore"):
            decay = np.exp(decay) if self.layout.form == "folder" else -decay
        conv = np.concatenate([tensors.array(role) for role in self._convolutions])
        conv = conv.reshape(self.channels, self.taps)
        out = tensors.matrix("out")
        if self.layout.heads == "tiled":
            heads = grouped_heads(self.groups, self.heads)
            order = rows_of_heads(heads, self.value_dim)
            b, a = gates.parts
            channels = np.concatenate([np.arange(2 * self.key_rows), 2 * self.key_rows + order])
            *qk, v = qkv.parts
            qkv = Linear((*qk, take_rows(v, order)))
            z = Linear((take_rows(z.parts[0], order),))
            gates = Linear((take_rows(b, heads), take_rows(a, heads)))
            decay, bias, conv = decay[heads], bias[heads], conv[channels]
            out = take_column_blocks(out, heads, self.value_dim)
        return DeltaWeights(
            qkv, z, gates, Linear((out,)), conv, np.stack([decay, bias]), tensors.array("norm")
        )

    def _projections(self, tensors: LayerTensors) -> tuple[Linear, Linear, Linear]:
        """Return the projections of queries, keys and values, of the output's gates, and of b and
        a, with the heads as in the file."""
        match self.layout.projections:
            case "separate":
                return tensors.linear("q", "k", "v"), tensors.linear("z"), tensors.linear("b", "a")
            case "apart":
                return (
                    self._split(tensors.matrix("qkv")),
                    tensors.linear("z"),
                    tensors.linear("b", "a"),
                )
            case "gates by group":
                return self._split(tensors.matrix("qkv")), tensors.linear("z"), self._gates(tensors)
            case "by group":
                whole = tensors.matrix("qkvz")
                q, k, v, z = (take_rows(whole, rows) for rows in self._grouped_rows)
                return Linear((q, k, v)), Linear((z,)), self._gates(tensors)

    def _gates(self, tensors: LayerTensors) -> Linear:
        b, a = (take_rows(tensors.matrix("ba"), rows) for rows in self._grouped_gates)
        return Linear((b, a))

    @property
    def _grouped_rows(self) -> list[Order]:
        """The rows of queries, keys, values and z in a matrix with those of each group in turn."""
        per = self.heads // self.groups * self.value_dim
        return rows_by_group(self.groups, (self.key_dim, self.key_dim, per, per))

    @property
    def _grouped_gates(self) -> list[Order]:
        """The rows of b and a in a matrix with those of each group in turn."""
        per = self.heads // self.groups
        return rows_by_group(self.groups, (per, per))

    def _split(self, qkv: Matrix) -> Linear:
        """Return the matrix of queries, keys and values with the values as a part of their own if
        they are reordered."""
        if self.layout.heads == "grouped":
            return Linear((qkv,))
        return Linear(split_rows(qkv, (2 * self.key_rows, self.value_rows)))

    @property
    def gguf_form(self) -> GatedDeltaSpec | None:
        """See WritableMixerSpec."""
        layout = _IN_GGUF.get(self.layout)
        return None if layout is None else replace(self, layout=layout)

    def in_gguf(self, role: str, tensors: LayerTensors) -> Matrix | Vector:
        """See WritableMixerSpec."""
        if self.layout.projections == "by group":
            return self._of_group(role, tensors)
        heads = np.argsort(grouped_heads(self.groups, self.heads))
        rows = rows_of_heads(heads, self.value_dim)
        channels = np.concatenate([np.arange(2 * self.key_rows), 2 * self.key_rows + rows])
        match role:
            case "qkv":
                return take_rows(tensors.matrix(role), channels)
            case "z":
                return take_rows(tensors.matrix(role), rows)
            case "b" | "a":
                return take_rows(tensors.matrix(role), heads)
            case "out":
                return take_column_blocks(tensors.matrix(role), heads, self.value_dim)
        values = tensors.array(role)
        match role:
            case "conv":
                values = values.reshape(self.channels, self.taps)[channels]
            case "decay":
                values = -np.exp(values)[heads]
            case "dt_bias":
                values = values[heads]
        return values

    def _of_group(self, role: str, tensors: LayerTensors) -> Matrix | Vector:
        """Return a tensor from those of a folder with queries, keys, values and gates of each group
        in turn."""
        q, k, v, z = self._grouped_rows
        match role:
            case "qkv":
                return take_rows(tensors.matrix("qkvz"), np.concatenate([q, k, v]))
            case "z":
                return take_rows(tensors.matrix("qkvz"), z)
            case "ba" | "out":
                return tensors.matrix(role)
            case "conv":
                return tensors.array(role).reshape(self.channels, self.taps)
            case "decay":
                return -np.exp(tensors.array(role))
        return tensors.array(role)

    def pack(self, weights: Any, spec: ModelSizes, ops: Ops[Tensor]) -> GatedDelta[Tensor]:
        """See MixerSpec."""
        return GatedDelta(self, weights, ops)

    def linear_weights(self, weights: Any) -> tuple[Linear, ...]:
        """See MixerSpec."""
        return weights.qkv, weights.z, weights.gates, weights.out


class GatedDelta(Generic[Tensor]):
    """A packed gated delta net. See `LoadedMixer`."""

    def __init__(self, spec: GatedDeltaSpec, weights: DeltaWeights, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._qkv = ops.pack_linear(weights.qkv)
        self._z = ops.pack_linear(weights.z)
        self._gates = ops.pack_linear(weights.gates)
        self._out = ops.pack_linear(weights.out)
        self._conv = ops.constant(np.ascontiguousarray(weights.conv))
        self._decay = ops.constant(weights.decay)
        self._norm = ops.constant(np.tile(weights.norm, spec.heads))

    def mix(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the net without its last projection: [T, W] -> [T, H D]."""
        spec, ops, inputs, state = self._spec, step.ops, step.inputs, step.state
        assert state is not None and state.conv is not None and state.matrix is not None
        qkv = ops.causal_conv(
            step.linear(x, self._qkv, "qkv"), self._conv, None, inputs, state.conv
        )
        gates = step.linear(x, self._gates, "gates")
        heads = (spec.groups, spec.heads, spec.key_dim, spec.value_dim)
        y = ops.gated_delta_rule(
            qkv, gates, self._decay, inputs, state.matrix, heads, spec.beta_scale
        )
        z = step.linear(x, self._z, "z")
        return ops.norm_then_gate(y, z, self._norm, spec.norm_eps, spec.heads)

    def project(self, step: LayerStep[Tensor], x: Tensor) -> Tensor:
        """Compute the last projection: [T, H D] -> [T, W]."""
        return step.linear(x, self._out, "out")
