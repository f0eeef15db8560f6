"""The audio tower of Gemma 4: two convolutions, then conformer layers with attention to the last
positions."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec_limits import MAX_LAYERS, MAX_WIDTH, check_sizes
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.audio_convolution import TAPS, halved, packed_taps, taps_of
from penstock.models.towers.conformer_attention import distance_sinusoids
from penstock.models.towers.conformer_layer import (
    EPS,
    ConformerLayer,
    ConformerNames,
    ConformerSizes,
    FeedNames,
    in_pieces,
)
from penstock.models.towers.piece_budget import MOST_ROWS, PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]

_SUBSAMPLINGS: Final = 2
_KEY_SCALE: Final = math.log(1 + math.e) / math.log(2)


def _feed(number: int) -> FeedNames:
    root = f"feed_forward{number}"
    return FeedNames(
        f"{root}.pre_layer_norm",
        f"{root}.ffw_layer_1.linear",
        f"{root}.ffw_layer_2.linear",
        f"{root}.post_layer_norm",
    )


_NAMES: Final = ConformerNames(
    first=_feed(1),
    attention_norm="norm_pre_attn",
    qkv=("self_attn.q_proj.linear", "self_attn.k_proj.linear", "self_attn.v_proj.linear"),
    relative="self_attn.relative_k_proj",
    dim_scale="self_attn.per_dim_scale",
    output="self_attn.post.linear",
    attention_post_norm="norm_post_attn",
    convolution_norm="lconv1d.pre_layer_norm",
    start="lconv1d.linear_start.linear",
    taps="lconv1d.depthwise_conv1d",
    middle_norm="lconv1d.conv_norm",
    end="lconv1d.linear_end.linear",
    last=_feed(2),
    last_norm="norm_out",
)


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

    def sizes(self) -> ConformerSizes:
        """Return the sizes of a layer. The farthest position has a relative key, but is not
        seen."""
        return ConformerSizes(
            width=self.width,
            heads=self.heads,
            kernel=self.kernel,
            context=self.context,
            visible=self.context - 1,
            chunk=self.chunk,
            logit_cap=self.logit_cap,
            key_scale=_KEY_SCALE,
            clipped=self.clipped,
        )

    def _shapes(self) -> dict[str, Shape]:
        first, second = self.channels
        front = "audio_tower.subsample_conv_projection."
        shapes: dict[str, Shape] = {
            f"{front}layer0.conv.weight": (first, 1, TAPS, TAPS),
            f"{front}layer0.norm.weight": (first,),
            f"{front}layer1.conv.weight": (second, first, TAPS, TAPS),
            f"{front}layer1.norm.weight": (second,),
            f"{front}input_proj_linear.weight": (self.width, self.mels // 4 * second),
            "audio_tower.output_proj.weight": (self.inner, self.width),
            "audio_tower.output_proj.bias": (self.inner,),
            "embed_audio.embedding_projection.weight": (self.outputs, self.inner),
        }
        for index in range(self.layers):
            own = self.sizes().shapes(_NAMES)
            shapes |= {f"audio_tower.layers.{index}.{name}": one for name, one in own.items()}
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
            (packed_taps(tensors, ops, f"{front}layer{n}.conv.weight"),
             tensors.vector(f"{front}layer{n}.norm.weight"))
            for n in range(_SUBSAMPLINGS)
        ]  # fmt: skip
        self._input = ops.pack_linear(tensors.linear([f"{front}input_proj_linear"], biased=False))
        positions = distance_sinusoids(spec.context - 1, spec.width)
        self._layers = [
            ConformerLayer(
                spec.sizes(), _NAMES, tensors, ops, f"audio_tower.layers.{index}.", positions
            )
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
            x = yield from layer.run(ops, x, budget)
        spec = self._spec
        ones = np.ones(spec.inner, np.float32)

        def project(rows: Floats, _: slice) -> Floats:
            normed = ops.rms_norm(ops.linear(rows, self._output), ones, EPS)
            projected: Floats = ops.linear(normed, self._projection)
            return projected

        operations = 2 * spec.inner * (x.shape[1] + spec.outputs)
        return EncodedMedia((yield from in_pieces(x, spec.outputs, operations, budget, project)))

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
                y = ops.layer_norm(ops.linear(columns, weight), norm, np.zeros_like(norm), EPS)
                np.maximum(y, 0, out=out[at])
                yield
            x = out  # its last row is zero
            grid = halved(grid[0], 1), halved(grid[1], 1)
        joined: Floats = ops.linear(x[:-1].reshape(grid[0], -1), self._input)
        return joined
