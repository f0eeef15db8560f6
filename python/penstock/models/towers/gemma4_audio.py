"""The audio tower of Gemma 4: two convolutions, then conformer layers with attention to the last
positions. Attention and the convolutions over time are small and computed with NumPy."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec import MAX_LAYERS, MAX_WIDTH, check_sizes
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.audio_convolution import TAPS, halved, taps_of
from penstock.models.towers.conformer_attention import ConformerAttention, distance_sinusoids
from penstock.models.towers.piece_budget import MOST_ROWS, PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]

_EPS: Final = 1e-6
_RESIDUAL: Final = np.float32(0.5)
_SUBSAMPLINGS: Final = 2
_LINEARS: Final = {
    "feed_forward1.ffw_layer_1": (4, 1),
    "feed_forward1.ffw_layer_2": (1, 4),
    "self_attn.q_proj": (1, 1),
    "self_attn.k_proj": (1, 1),
    "self_attn.v_proj": (1, 1),
    "self_attn.post": (1, 1),
    "lconv1d.linear_start": (2, 1),
    "lconv1d.linear_end": (1, 1),
    "feed_forward2.ffw_layer_1": (4, 1),
    "feed_forward2.ffw_layer_2": (1, 4),
}
"""Clipped linear layers of a layer -> (outputs, inputs) in widths."""
_NORMS: Final = (
    *("feed_forward1.pre_layer_norm", "feed_forward1.post_layer_norm", "norm_pre_attn"),
    *("norm_post_attn", "lconv1d.pre_layer_norm", "lconv1d.conv_norm"),
    *("feed_forward2.pre_layer_norm", "feed_forward2.post_layer_norm", "norm_out"),
)
_LIMITS: Final = ("input_min", "input_max", "output_min", "output_max")


@dataclass(frozen=True, slots=True)
class ConformerSpec:
    """The configuration of the tower. Media are features [frames, mels].

    - `channels`: channels of the two convolutions; the first must be the number of mels.
    - `kernel`: positions of the convolution over time.
    - `context`: positions that attention sees, the own one included.
    - `chunk`: positions whose attention is computed together.
    - `logit_cap`: attention scores are capped smoothly at this size.
    - `inner`: the width before the projection to the language model, `outputs`.
    - `clipped`: linear layers limit their inputs and outputs.
    """

    layers: int
    width: int
    heads: int
    channels: tuple[int, int]
    kernel: int
    context: int
    chunk: int
    logit_cap: float
    inner: int
    outputs: int
    clipped: bool
    roots: tuple[str, ...] = ("model.", "")

    @property
    def mels(self) -> int:
        return self.channels[0]

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def rows(self, frames: int) -> int:
        """Return the rows of a recording."""
        return halved(frames, _SUBSAMPLINGS)

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        limits = {
            "num_hidden_layers": (self.layers, MAX_LAYERS),
            "hidden_size": (self.width, MAX_WIDTH),
            "num_attention_heads": (self.heads, self.width),
            "conv_kernel_size": (self.kernel, 1024),
            "attention_context_left": (self.context, 1 << 16),
            "attention_chunk_size": (self.chunk, 1 << 16),
            "output_proj_dims": (self.inner, MAX_WIDTH),
        }
        check_sizes(where, limits)

    def scratch_bytes(self) -> int:
        frames = 3000
        first = halved(frames, 1) * halved(self.mels, 1) * self.channels[0]
        return 4 * (
            first + MOST_ROWS * TAPS**2 * self.channels[0] + self.rows(frames) * 16 * self.width
        )

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedConformer:
        """Find and check the tensors; see TowerSpec."""
        root = find_root(self.roots, "audio_tower.output_proj.weight", checkpoint)
        return LoadedConformer(self, TowerTensors(checkpoint, root, self._shapes(), dtype))

    def _shapes(self) -> dict[str, Shape]:
        first, second = self.channels
        width = self.width
        front = "audio_tower.subsample_conv_projection."
        shapes: dict[str, Shape] = {
            f"{front}layer0.conv.weight": (first, 1, TAPS, TAPS),
            f"{front}layer0.norm.weight": (first,),
            f"{front}layer1.conv.weight": (second, first, TAPS, TAPS),
            f"{front}layer1.norm.weight": (second,),
            f"{front}input_proj_linear.weight": (width, self.mels // 4 * second),
            "audio_tower.output_proj.weight": (self.inner, width),
            "audio_tower.output_proj.bias": (self.inner,),
            "embed_audio.embedding_projection.weight": (self.outputs, self.inner),
        }
        for index in range(self.layers):
            layer = f"audio_tower.layers.{index}."
            for name, (rows, columns) in _LINEARS.items():
                shapes[f"{layer}{name}.linear.weight"] = (rows * width, columns * width)
                if self.clipped:
                    shapes |= {f"{layer}{name}.{limit}": () for limit in _LIMITS}
            shapes |= {f"{layer}{name}.weight": (width,) for name in _NORMS}
            shapes[f"{layer}lconv1d.depthwise_conv1d.weight"] = (width, 1, self.kernel)
            shapes[f"{layer}self_attn.relative_k_proj.weight"] = (width, width)
            shapes[f"{layer}self_attn.per_dim_scale"] = (width // self.heads,)
        return shapes


@dataclass(frozen=True, slots=True)
class LoadedConformer:
    """The tensors of the tower."""

    spec: ConformerSpec
    tensors: TowerTensors

    @property
    def weight_bytes(self) -> int:
        return self.tensors.size_bytes

    def build(self, ops: Ops[Any]) -> ConformerTower[Any]:
        return ConformerTower(self.spec, self.tensors, ops)


class ConformerTower(Generic[Tensor]):
    """The tower whose weights are packed for one kernel backend."""

    def __init__(self, spec: ConformerSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._spec = spec
        front = "audio_tower.subsample_conv_projection."
        self._convolutions = [
            (_convolution(tensors, ops, f"{front}layer{n}.conv.weight"),
             tensors.vector(f"{front}layer{n}.norm.weight"))
            for n in range(_SUBSAMPLINGS)
        ]  # fmt: skip
        self._input = ops.pack_linear(tensors.linear([f"{front}input_proj_linear"], biased=False))
        positions = distance_sinusoids(spec.context - 1, spec.width)
        self._layers = [
            _ConformerLayer(spec, tensors, ops, f"audio_tower.layers.{index}.", positions)
            for index in range(spec.layers)
        ]
        self._output = ops.pack_linear(tensors.linear(["audio_tower.output_proj"], biased=True))
        self._projection = ops.pack_linear(
            tensors.linear(["embed_audio.embedding_projection"], biased=False)
        )

    def encode(
        self, ops: Ops[Any], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Any]]:
        x = yield from self._subsample(ops, media.array(), budget)
        for layer in self._layers:
            x = yield from layer.run(ops, x)
        x = ops.linear(x, self._output)
        x = ops.rms_norm(x, np.ones(self._spec.inner, np.float32), _EPS)
        return EncodedMedia(ops.linear(x, self._projection))

    def _subsample(
        self, ops: Ops[Any], features: Floats, budget: PieceBudget
    ) -> Generator[None, None, Floats]:
        """Return the positions of a recording: [frames, mels] -> [rows, W]."""
        grid = features.shape
        x = np.append(features.reshape(-1), np.float32(0))[:, None]
        for weight, norm in self._convolutions:
            taps = taps_of(*grid)
            out = np.zeros((len(taps) + 1, len(norm)), np.float32)
            operations = 2 * TAPS**2 * x.shape[1] * len(norm)
            for at in budget.slices(len(taps), operations):
                columns = x[taps[at]].reshape(-1, TAPS**2 * x.shape[1])
                columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % 16)))
                y = ops.layer_norm(ops.linear(columns, weight), norm, np.zeros_like(norm), _EPS)
                np.maximum(y, 0, out=out[at])
                yield
            x = out  # its last row is zero
            grid = halved(grid[0], 1), halved(grid[1], 1)
        joined: Floats = ops.linear(x[:-1].reshape(grid[0], -1), self._input)
        return joined


class _ClippedLinear:
    """A linear layer that limits its inputs and outputs."""

    def __init__(self, tensors: TowerTensors, ops: Ops[Any], name: str, *, clipped: bool) -> None:
        self._weight = ops.pack_linear(tensors.linear([f"{name}.linear"], biased=False))
        self._limits: list[float] | None = None
        if clipped:
            self._limits = [float(tensors.vector(f"{name}.{limit}")[0]) for limit in _LIMITS]

    def __call__(self, ops: Ops[Any], x: Floats) -> Floats:
        if self._limits is None:
            plain: Floats = ops.linear(x, self._weight)
            return plain
        least_in, most_in, least_out, most_out = self._limits
        y: Floats = ops.linear(np.clip(x, least_in, most_in), self._weight)
        return np.clip(y, least_out, most_out)


class _ConformerLayer:
    """A layer of the conformer. `positions`: of the distances that attention sees, [context, W]."""

    def __init__(
        self,
        spec: ConformerSpec,
        tensors: TowerTensors,
        ops: Ops[Any],
        prefix: str,
        positions: Floats,
    ) -> None:
        self._kernel = spec.kernel
        self._linears = {
            name: _ClippedLinear(tensors, ops, prefix + name, clipped=spec.clipped)
            for name in _LINEARS
        }
        self._norms = {name: tensors.vector(f"{prefix}{name}.weight") for name in _NORMS}
        self._taps = tensors.table(f"{prefix}lconv1d.depthwise_conv1d.weight", spec.width)
        relative = dequantize(tensors.matrix(f"{prefix}self_attn.relative_k_proj.weight"))
        scale = np.logaddexp(0, tensors.vector(f"{prefix}self_attn.per_dim_scale"))
        head_dim = spec.width // spec.heads
        self._attention = ConformerAttention(
            heads=spec.heads,
            chunk=spec.chunk,
            context=spec.context,
            cap=spec.logit_cap,
            query_scale=(scale * (head_dim**-0.5 / math.log(2))).astype(np.float32),
            key_scale=math.log(1 + math.e) / math.log(2),
            relative=positions @ relative.T,
        )

    def run(self, ops: Ops[Any], x: Floats) -> Generator[None, None, Floats]:
        """Compute the layer: [N, W] -> [N, W]."""
        x = self._feed(ops, x, "feed_forward1")
        yield
        normed = self._norm(ops, x, "norm_pre_attn")
        q, k, v = (self._linear(ops, normed, f"self_attn.{name}_proj") for name in "qkv")
        seen = self._linear(ops, self._attention(q, k, v), "self_attn.post")
        x = x + self._norm(ops, seen, "norm_post_attn")
        yield
        x = x + self._convolve(ops, x)
        yield
        x = self._feed(ops, x, "feed_forward2")
        yield
        return self._norm(ops, x, "norm_out")

    def _feed(self, ops: Ops[Any], x: Floats, name: str) -> Floats:
        inner = self._norm(ops, x, f"{name}.pre_layer_norm")
        inner = _silu(self._linear(ops, inner, f"{name}.ffw_layer_1"))
        inner = self._linear(ops, inner, f"{name}.ffw_layer_2")
        total: Floats = x + self._norm(ops, inner, f"{name}.post_layer_norm") * _RESIDUAL
        return total

    def _convolve(self, ops: Ops[Any], x: Floats) -> Floats:
        """Compute the gated convolution over the last `kernel` positions."""
        start = self._linear(
            ops, self._norm(ops, x, "lconv1d.pre_layer_norm"), "lconv1d.linear_start"
        )
        values, gates = np.split(start, 2, axis=1)
        padded = np.pad(values / (1 + np.exp(-gates)), ((self._kernel - 1, 0), (0, 0)))
        mixed = np.zeros_like(x)
        for tap in range(self._kernel):
            mixed += padded[tap : tap + len(x)] * self._taps[:, tap]
        mixed = _silu(self._norm(ops, mixed, "lconv1d.conv_norm"))
        return self._linear(ops, mixed, "lconv1d.linear_end")

    def _linear(self, ops: Ops[Any], x: Floats, name: str) -> Floats:
        return self._linears[name](ops, x)

    def _norm(self, ops: Ops[Any], x: Floats, name: str) -> Floats:
        normed: Floats = ops.rms_norm(np.ascontiguousarray(x), self._norms[name], _EPS)
        return normed


def _silu(x: Floats) -> Floats:
    activated: Floats = x / (1 + np.exp(-x))
    return activated


def _convolution(tensors: TowerTensors, ops: Ops[Any], name: str) -> Any:
    """Return a convolution as a linear layer over the taps: [C, I, taps] becomes [C, taps * I]."""
    stored = dequantize(tensors.flattened(name))
    weight = stored.reshape(len(stored), -1, TAPS**2).swapaxes(1, 2).reshape(len(stored), -1)
    weight = np.pad(weight, ((0, 0), (0, -weight.shape[1] % 16)))
    return ops.pack_linear(Linear((Dense(np.ascontiguousarray(weight, np.float32), "f32"),), None))
