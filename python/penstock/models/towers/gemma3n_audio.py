"""The audio tower of Gemma 3n: two convolutions, conformer layers with attention to the last
positions, one of several positions, and a fixed number of rows."""

from __future__ import annotations

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
)
from penstock.models.towers.piece_budget import MOST_ROWS, PieceBudget
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")
Floats = npt.NDArray[np.float32]

_FRONT: Final = "audio_tower.subsample_conv_projection."
_FRAMES: Final = 3000
_CONVOLUTIONS: Final = 2


def _feed(name: str) -> FeedNames:
    return FeedNames(
        f"{name}.pre_layer_norm",
        f"{name}.ffw_layer_1",
        f"{name}.ffw_layer_2",
        f"{name}.post_layer_norm",
    )


_NAMES: Final = ConformerNames(
    first=_feed("ffw_layer_start"),
    attention_norm="attention.pre_attn_norm",
    qkv=("attention.attn.q_proj", "attention.attn.k_proj", "attention.attn.v_proj"),
    relative="attention.attn.relative_position_embedding.pos_proj",
    dim_scale="attention.attn.per_dim_scale",
    output="attention.post",
    attention_post_norm="attention.post_norm",
    convolution_norm="lconv1d.pre_layer_norm",
    start="lconv1d.linear_start",
    taps="lconv1d.depthwise_conv1d",
    middle_norm="lconv1d.conv_norm",
    end="lconv1d.linear_end",
    last=_feed("ffw_layer_end"),
    last_norm="norm",
)


@dataclass(frozen=True, slots=True)
class Gemma3nAudioSpec:
    """The configuration of the tower. Media are features [frames, mels].

    - `sizes`: of the layers.
    - `channels`, `norm_eps`: of the two convolutions.
    - `reduction`: one of this many positions becomes a row.
    - `tokens`: rows of every recording. Missing rows are the embedding of a padding token.
    - `vocab`: rows of the embedding, of which the last one is for padding.
    - `outputs`: the width of the language model.
    """

    layers: int
    sizes: ConformerSizes
    mels: int
    channels: tuple[int, int]
    norm_eps: float
    reduction: int
    tokens: int
    vocab: int
    outputs: int
    roots: tuple[str, ...] = ("model.", "")

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"audio"})

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        sizes = self.sizes
        limits = {
            "conf_num_hidden_layers": (self.layers, MAX_LAYERS),
            "hidden_size": (sizes.width, MAX_WIDTH),
            "conf_num_attention_heads": (sizes.heads, sizes.width),
            "conf_conv_kernel_size": (sizes.kernel, 1024),
            "conf_attention_context_left": (sizes.context, 1 << 16),
            "conf_attention_chunk_size": (sizes.chunk, 1 << 16),
            "conf_reduction_factor": (self.reduction, 1024),
            "input_feat_size": (self.mels, 1024),
            "vocab_size": (self.vocab, 1 << 20),
            "audio_soft_tokens_per_image": (self.tokens, 1 << 16),
        }
        check_sizes(where, limits)

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        first = halved(_FRAMES, 1) * halved(self.mels, 1) * self.channels[0]
        columns = MOST_ROWS * TAPS**2 * self.channels[0]
        return 4 * (4 * first + columns + halved(_FRAMES, 2) * 16 * self.sizes.width)

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedGemma3nAudio:
        """Find and check the tensors; see TowerSpec."""
        root = find_root(self.roots, f"{_FRONT}input_proj_linear.weight", checkpoint)
        return LoadedGemma3nAudio(self, TowerTensors(checkpoint, root, self._shapes(), dtype))

    def _shapes(self) -> dict[str, Shape]:
        first, second = self.channels
        width = self.sizes.width
        shapes: dict[str, Shape] = {
            f"{_FRONT}conv_0.conv.weight": (first, 1, TAPS, TAPS),
            f"{_FRONT}conv_0.norm.weight": (first,),
            f"{_FRONT}conv_1.conv.weight": (second, first, TAPS, TAPS),
            f"{_FRONT}conv_1.norm.weight": (second,),
            f"{_FRONT}input_proj_linear.weight": (
                width,
                halved(self.mels, _CONVOLUTIONS) * second,
            ),
            "embed_audio.embedding.weight": (self.vocab, width),
            "embed_audio.hard_embedding_norm.weight": (width,),
            "embed_audio.soft_embedding_norm.weight": (width,),
            "embed_audio.embedding_projection.weight": (self.outputs, width),
        }
        for index in range(self.layers):
            layer = f"audio_tower.conformer.{index}."
            shapes |= {layer + name: one for name, one in self.sizes.shapes(_NAMES).items()}
        return shapes


@dataclass(frozen=True, slots=True)
class LoadedGemma3nAudio:
    """The tensors of the tower."""

    spec: Gemma3nAudioSpec
    tensors: TowerTensors

    @property
    def weight_bytes(self) -> int:
        return self.tensors.size_bytes

    def build(self, ops: Ops[Any]) -> Gemma3nAudioTower[Any]:
        return Gemma3nAudioTower(self.spec, self.tensors, ops)


class Gemma3nAudioTower(Generic[Tensor]):
    """The tower whose weights are packed for one kernel backend."""

    def __init__(self, spec: Gemma3nAudioSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._spec = spec
        self._convolutions = [
            (packed_taps(tensors, ops, f"{_FRONT}conv_{n}.conv.weight"),
             tensors.vector(f"{_FRONT}conv_{n}.norm.weight"))
            for n in range(_CONVOLUTIONS)
        ]  # fmt: skip
        self._input = ops.pack_linear(tensors.linear([f"{_FRONT}input_proj_linear"], biased=False))
        positions = distance_sinusoids(spec.sizes.context - 1, spec.sizes.width)
        self._layers = [
            ConformerLayer(
                spec.sizes, _NAMES, tensors, ops, f"audio_tower.conformer.{index}.", positions
            )
            for index in range(spec.layers)
        ]
        self._norm = tensors.vector("embed_audio.soft_embedding_norm.weight")
        self._projection = ops.pack_linear(
            tensors.linear(["embed_audio.embedding_projection"], biased=False)
        )
        padding = tensors.table("embed_audio.embedding.weight", spec.vocab)[-1:]
        hard_norm = tensors.vector("embed_audio.hard_embedding_norm.weight")
        self._padding = self._project(ops, padding, hard_norm)

    def encode(
        self, ops: Ops[Any], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Any]]:
        x = yield from self._subsample(ops, media.array(), budget)
        for layer in self._layers:
            x = yield from layer.run(ops, x, budget)
        kept = x[:: self._spec.reduction][: self._spec.tokens]
        rows = np.repeat(self._padding, self._spec.tokens, axis=0)
        rows[: len(kept)] = self._project(ops, kept, self._norm)
        return EncodedMedia(rows)

    def _project(self, ops: Ops[Any], x: Floats, norm: Floats) -> Floats:
        """Return rows of the language model."""
        x = ops.linear(ops.rms_norm(np.ascontiguousarray(x), norm, EPS), self._projection)
        projected: Floats = ops.rms_norm(x, np.ones(self._spec.outputs, np.float32), EPS)
        return projected

    def _subsample(
        self, ops: Ops[Any], features: Floats, budget: PieceBudget
    ) -> Generator[None, None, Floats]:
        """Return the positions of a recording: [frames, mels] -> [rows, W]."""
        grid = len(features), features.shape[1]
        x = np.append(features.reshape(-1), np.float32(0))[:, None]
        for weight, norm in self._convolutions:
            taps = taps_of(grid[0], grid[1], first=0)
            made = np.empty((len(taps), len(norm)), np.float32)
            for at in budget.slices(len(taps), 2 * TAPS**2 * x.shape[1] * len(norm)):
                columns = x[taps[at]].reshape(-1, TAPS**2 * x.shape[1])
                columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % 16)))
                made[at] = ops.linear(columns, weight)
                yield
            grid = halved(grid[0], 1), halved(grid[1], 1)
            x = np.zeros((len(taps) + 1, len(norm)), np.float32)  # its last row is zero
            x[:-1] = _normed_over_time(made, grid[0], norm, self._spec.norm_eps)
        joined: Floats = ops.linear(x[:-1].reshape(grid[0], -1), self._input)
        return joined


def _normed_over_time(x: Floats, times: int, scale: Floats, eps: float) -> Floats:
    """Return the positive part of `x` [times * features, C], normalized at each time by the mean
    and variance up to that time. A variance sums the differences from the mean of each time."""
    at_time = x.reshape(times, -1, x.shape[1])
    count = np.arange(1, times + 1) * (at_time.shape[1] * at_time.shape[2])
    mean = np.cumsum(at_time.sum((1, 2), dtype=np.float64)) / count
    centered = at_time - mean.astype(np.float32)[:, None, None]
    squares = np.square(centered).sum((1, 2), dtype=np.float64)
    deviation = np.sqrt(np.cumsum(squares) / count + eps).astype(np.float32)
    normed = centered / deviation[:, None, None] * scale
    positive: Floats = np.maximum(normed, 0, out=normed).reshape(x.shape)
    return positive
