"""The audio tower of Phi-4-multimodal: convolutions that shorten the recording, conformer layers
with attention inside windows, and a projection that depends on the other media of the request."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Linear
from penstock.models.decoder.rope import identity_table
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.attention_groups import AttentionGroups, empty_cache
from penstock.models.towers.audio_layers import PackedNorm
from penstock.models.towers.phi4_audio_spec import WINDOW, Phi4AudioSpec
from penstock.models.towers.phi4_subsampling import Phi4Subsampling
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.weight_slices import take_rows

Tensor = TypeVar("Tensor")

_EPS: Final = 1e-5
_USES: Final = ("speech", "vision_speech")


@dataclass(frozen=True, slots=True)
class Phi4AudioTowerSpec:
    """A TowerSpec. `roots`: the prefixes that may precede the names of all tensors."""

    sizes: Phi4AudioSpec
    roots: tuple[str, ...]

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def scratch_bytes(self) -> int:
        sizes = self.sizes
        return 4 * (WINDOW * (10 * sizes.width + 2 * sizes.outputs)) + Phi4Subsampling.bytes_of(
            sizes
        )

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedPhi4Audio:
        """Find and check the tensors; see TowerSpec."""
        root = find_root(self.roots, "encoder.embed.out.weight", checkpoint)
        tensors = TowerTensors(checkpoint, root, self.sizes.shapes(), dtype)
        return LoadedPhi4Audio(self.sizes, tensors)


@dataclass(frozen=True, slots=True)
class LoadedPhi4Audio:
    """The tensors of the tower."""

    spec: Phi4AudioSpec
    tensors: TowerTensors

    @property
    def weight_bytes(self) -> int:
        return self.tensors.size_bytes

    def build(self, ops: Ops[Any]) -> Phi4AudioTower[Any]:
        return Phi4AudioTower(self.spec, self.tensors, ops)


class Phi4AudioTower(Generic[Tensor]):
    """The tower whose weights are packed for one kernel backend."""

    def __init__(self, spec: Phi4AudioSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._subsampling = Phi4Subsampling(spec, tensors, ops)
        table = tensors.table(
            "encoder.relative_attention_bias_layer.bias_values.weight", 2 * spec.farthest
        )
        bias = ops.constant(spec.attention_bias(table))
        self._layers = [
            _ConformerLayer(spec, tensors, ops, f"encoder.encoders.{index}.", bias)
            for index in range(spec.layers)
        ]
        self._projections = [
            [
                ops.pack_linear(tensors.linear([f"{step}_proj_for_{use}"], biased=True))
                for step in ("up", "down")
            ]
            for use in _USES
        ]

    def encode(
        self, ops: Ops[Any], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Any]]:
        up, down = self._projections[media.layout[0] if media.layout else 0]
        states = yield from self._subsampling.run(ops, media.array(), budget)
        count = len(states)
        rows: Any = ops.constant(np.empty((count, self._spec.outputs), np.float32))
        for first in range(0, count, WINDOW):
            window = _window(ops, states[first : first + WINDOW], whole=count > WINDOW)
            for layer in self._layers:
                yield from layer.run(ops, window, budget)
            kept = window[: min(WINDOW, count - first)]
            rows[first : first + WINDOW] = ops.linear(ops.gelu(ops.linear(kept, up)), down)
            yield
        return EncodedMedia(rows)


def _window(ops: Ops[Any], states: Any, *, whole: bool) -> Any:
    """Return the states of a window. The last window of a long recording ends with zeros, which the
    other positions attend to."""
    if not whole or len(states) == WINDOW:
        return states
    window: Any = ops.constant(np.zeros((WINDOW, states.shape[1]), np.float32))
    window[: len(states)] = states
    return window


class _FeedForward:
    """A gated feed-forward with a norm before it, half of whose result counts."""

    def __init__(self, tensors: TowerTensors, ops: Ops[Any], name: str) -> None:
        self._norm = PackedNorm.read(ops, tensors, f"{name}.layer_norm")
        stored = tensors.linear([f"{name}.gate_up_proj"], biased=True)
        self._up = ops.pack_linear(_gate_first(stored))
        self._down = ops.pack_linear(tensors.linear([f"{name}.down_proj"], biased=True))

    def __call__(self, ops: Ops[Any], x: Any) -> Any:
        """Return the rows with the feed-forward's results added."""
        up = ops.linear(_normed(ops, x, self._norm), self._up)
        return x + ops.linear(ops.silu_mul(up), self._down) * 0.5


class _Convolution:
    """The gated convolution over the last `kernel` positions."""

    def __init__(
        self, spec: Phi4AudioSpec, tensors: TowerTensors, ops: Ops[Any], name: str
    ) -> None:
        def product(part: str) -> Linear:
            matrix = tensors.flattened(f"{name}.{part}.weight")
            return Linear((matrix,), tensors.vector(f"{name}.{part}.bias"))

        self._kernel, self._width = spec.kernel, spec.width
        self._norm = PackedNorm.read(ops, tensors, f"{name}.layer_norm")
        gates = product("glu.ext_pw_conv_1d")
        assert gates.bias is not None
        added = [tensors.vector(f"{name}.glu.{bias}") for bias in ("b1", "b2")]
        gates = Linear(gates.parts, gates.bias + np.concatenate(added))
        self._gated = ops.pack_linear(_gate_first(gates))
        each = f"{name}.dw_sep_conv_1d.dw_conv"
        taps = tensors.table(f"{each}.weight", spec.width)
        self._taps = [ops.constant(np.ascontiguousarray(tap)) for tap in taps.T]
        self._bias = ops.constant(tensors.vector(f"{each}.bias"))
        self._single = ops.pack_linear(product("dw_sep_conv_1d.pw_conv"))
        self._last = ops.pack_linear(product("ext_pw_conv_1d"))

    def inputs(self, ops: Ops[Any], count: int) -> Any:
        """Return the buffer for the inputs of `count` positions, which zeros precede."""
        return ops.constant(np.zeros((self._kernel - 1 + count, self._width), np.float32))

    def gate(self, ops: Ops[Any], x: Any, inputs: Any, rows: slice) -> None:
        """Compute the inputs of the positions `rows` from their states `x`."""
        first = self._kernel - 1
        gated = ops.linear(_normed(ops, x, self._norm), self._gated)
        inputs[first + rows.start : first + rows.stop] = ops.silu_mul(gated)

    def __call__(self, ops: Ops[Any], inputs: Any, rows: slice) -> Any:
        """Return the results of the positions `rows`."""
        mixed = self._bias
        for tap, weight in enumerate(self._taps):
            mixed = mixed + inputs[tap + rows.start : tap + rows.stop] * weight
        mixed = ops.linear(mixed, self._single)
        count = rows.stop - rows.start
        beside: Any = ops.constant(np.ones((count, 2 * self._width), np.float32))
        beside[:, : self._width] = mixed
        return ops.linear(ops.silu_mul(beside), self._last)


class _ConformerLayer:
    """A layer of the conformer. `bias`: see `Phi4AudioSpec.attention_bias`."""

    def __init__(
        self,
        spec: Phi4AudioSpec,
        tensors: TowerTensors,
        ops: Ops[Any],
        prefix: str,
        bias: Any,
    ) -> None:
        self._spec = spec
        self._heads = (spec.heads, spec.heads, spec.head_dim)
        self._bias = bias
        names = [f"{prefix}self_attn.{part}_proj" for part in "qkv"]
        self._qkv = ops.pack_linear(tensors.linear(names, biased=True))
        self._output = ops.pack_linear(tensors.linear([f"{prefix}self_attn.o_proj"], biased=True))
        self._attention_norm = PackedNorm.read(ops, tensors, f"{prefix}layer_norm_att")
        self._last_norm = PackedNorm.read(ops, tensors, f"{prefix}layer_norm")
        self._first = _FeedForward(tensors, ops, f"{prefix}feed_forward_in")
        self._last = _FeedForward(tensors, ops, f"{prefix}feed_forward_out")
        self._convolution = _Convolution(spec, tensors, ops, f"{prefix}conv")

    def run(self, ops: Ops[Any], x: Any, budget: PieceBudget) -> Generator[None, None, None]:
        """Compute the layer over a window `x: [N, W]`, which is modified."""
        count, heads = len(x), self._heads
        groups = AttentionGroups(ops, [count], np.zeros(count, np.int32))
        cache = empty_cache(ops, [[count]], heads[0], heads[2])
        rope = ops.constant(identity_table(1))
        queries: Any = ops.constant(np.empty((count, x.shape[1]), np.float32))
        inputs = self._convolution.inputs(ops, count)
        for at in budget.slices(count, self._spec.first_operations):
            x[at] = states = self._first(ops, x[at])
            qkv = ops.linear(_normed(ops, states, self._attention_norm), self._qkv)
            queries[at] = ops.rope_cache(qkv, rope, groups.piece(at).inputs, cache, heads, None)
            yield
        scale = heads[2] ** -0.5
        for at in budget.slices(count, self._spec.attention_operations):
            seen = ops.bidirectional_attention(
                queries[at], groups.piece(at).inputs, cache, heads, scale, 0, self._bias
            )
            x[at] = states = x[at] + ops.linear(seen, self._output)
            self._convolution.gate(ops, states, inputs, at)
            yield
        for at in budget.slices(count, self._spec.last_operations):
            states = self._last(ops, x[at] + self._convolution(ops, inputs, at))
            x[at] = _normed(ops, states, self._last_norm)
            yield


def _normed(ops: Ops[Any], x: Any, norm: PackedNorm[Any]) -> Any:
    return ops.layer_norm(x, norm.weight, norm.bias, _EPS)


def _gate_first(stored: Linear) -> Linear:
    """Return a linear layer with its second half of outputs first, as `Ops.silu_mul` reads them."""
    (matrix,), bias = stored.parts, stored.bias
    assert bias is not None
    order = np.roll(np.arange(len(bias)), len(bias) // 2)
    return Linear((take_rows(matrix, order),), bias[order])
