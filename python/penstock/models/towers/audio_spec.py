"""The configuration of Whisper-like audio encoders, and their tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.weights import Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec_limits import MAX_LAYERS, MAX_WIDTH, check_sizes
from penstock.models.towers.tower_weights import Floats, TowerTensors, tower_linear


@dataclass(frozen=True, slots=True)
class AudioLayersSpec:
    """The transformer layers of an audio encoder: LayerNorm before each block, gelu.

    - `width`: numbers per position.
    - `intermediate`: the width of the feed-forward.
    - `key_bias`: the key projection has a bias.
    """

    layers: int
    width: int
    heads: int
    intermediate: int
    norm_eps: float = 1e-5
    key_bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def qkv_operations(self) -> int:
        """The operations of the queries, keys and values of a row."""
        return 6 * self.width**2

    def feed_operations(self, seen: int) -> int:
        """Return the operations of the rest of a layer for a row that attends to `seen` rows."""
        return 2 * self.width * (self.width + 2 * self.intermediate + 2 * seen)

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        limits = {
            "number of encoder layers": (self.layers, MAX_LAYERS),
            "encoder width": (self.width, MAX_WIDTH),
            "encoder heads": (self.heads, MAX_WIDTH),
            "encoder feed-forward width": (self.intermediate, MAX_WIDTH),
        }
        check_sizes(where, limits)
        if self.width % self.heads or self.head_dim % 8:
            raise ModelError(
                f"{where}: encoder width {self.width} must be a multiple of 8 for each of"
                f" {self.heads} heads"
            )


@dataclass(frozen=True, slots=True)
class WhisperEncoderSpec:
    """Whisper's encoder: two convolutions over time, positions, layers and a norm.

    - `mels`: features per frame.
    - `positions`: rows of the position table; the encoder takes up to twice as many frames.
    """

    body: AudioLayersSpec
    mels: int
    positions: int

    @property
    def frames(self) -> int:
        """The most frames of a recording: the second convolution has stride 2."""
        return 2 * self.positions

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        self.body.check(where)
        check_sizes(
            where,
            {"num_mel_bins": (self.mels, 1024), "max_source_positions": (self.positions, 1 << 16)},
        )

    def scratch_bytes(self) -> int:
        """Return an upper bound of the bytes of activations while one recording is encoded."""
        body = self.body
        rows = self.positions * (8 * body.width) + self.frames * (body.width + self.mels)
        return 4 * (rows + 512 * (3 * self.mels + 3 * body.width + 2 * body.intermediate))


def layer_shapes(spec: AudioLayersSpec, root: str) -> dict[str, Shape]:
    """Return the names and shapes of the tensors of all layers. `root`: precedes all names."""
    width, inner = spec.width, spec.intermediate
    linears = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width, width),
        "self_attn.v_proj": (width, width),
        "self_attn.out_proj": (width, width),
        "fc1": (inner, width),
        "fc2": (width, inner),
    }
    shapes: dict[str, Shape] = {}
    for index in range(spec.layers):
        prefix = f"{root}layers.{index}."
        for name, shape in linears.items():
            shapes[f"{prefix}{name}.weight"] = shape
            if spec.key_bias or name != "self_attn.k_proj":
                shapes[f"{prefix}{name}.bias"] = shape[:1]
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            shapes |= norm_shapes(f"{prefix}{name}", width)
    return shapes


def norm_shapes(name: str, width: int) -> dict[str, Shape]:
    """Return the names and shapes of the two tensors of a LayerNorm."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def whisper_shapes(spec: WhisperEncoderSpec, root: str) -> dict[str, Shape]:
    """Return the names and shapes of the tensors of Whisper's encoder without its last norm."""
    width = spec.body.width
    return {
        f"{root}conv1.weight": (width, spec.mels, 3),
        f"{root}conv1.bias": (width,),
        f"{root}conv2.weight": (width, width, 3),
        f"{root}conv2.bias": (width,),
        f"{root}embed_positions.weight": (spec.positions, width),
    } | layer_shapes(spec.body, root)


def qkv_linear(tensors: TowerTensors, prefix: str, *, key_bias: bool) -> Linear:
    """Return the fused projection of queries, keys and values. A missing bias of the keys is
    zeros."""
    names = [f"{prefix}{name}_proj" for name in ("q", "k", "v")]
    biases: list[Floats] = [tensors.vector(f"{name}.bias") for name in (names[0], names[2])]
    keys = tensors.vector(f"{names[1]}.bias") if key_bias else np.zeros_like(biases[0])
    parts = tuple(tensors.matrix(f"{name}.weight") for name in names)
    return tower_linear(parts, np.concatenate([biases[0], keys, biases[1]]))
