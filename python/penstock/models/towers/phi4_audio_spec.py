"""The configuration of Phi-4-multimodal's audio tower, and the names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.spec_limits import MAX_LAYERS, MAX_WIDTH, check_sizes
from penstock.models.towers.audio_convolution import TAPS, halved
from penstock.models.towers.audio_spec import norm_shapes

WINDOW: Final = 500
"""Positions that attend to each other: a longer recording is divided into windows."""


@dataclass(frozen=True, slots=True)
class Phi4AudioSpec:
    """The sizes of the tower. Media are features [frames, mels]; `layout` is () or (1,), which
    selects the second projection.

    - `halvings`: convolutions with stride 2.
    - `channels`: their channels.
    - `kernel`: positions of the convolution over time.
    - `farthest`: the distance from which all positions have the same attention bias.
    - `outputs`: the width of the language model.
    """

    layers: int
    width: int
    heads: int
    intermediate: int
    mels: int
    halvings: int
    channels: int
    kernel: int
    farthest: int
    outputs: int

    @property
    def head_dim(self) -> int:
        """The number of elements of one attention head."""
        return self.width // self.heads

    @property
    def subsampling_operations(self) -> int:
        """The operations of the convolutions for one row of the result."""
        per_channels, total = 2 * self.channels**2, 0
        for level in range(1, self.halvings):
            total += per_channels * halved(self.mels, level + 1) << (self.halvings - 1 - level)
        return total + 2 * self.channels * halved(self.mels, self.halvings) * self.width

    @property
    def first_operations(self) -> int:
        """The operations of a layer before attention for one row."""
        return 6 * self.width * self.intermediate + 6 * self.width**2

    @property
    def attention_operations(self) -> int:
        """The operations of attention and the gates of the convolution for one row."""
        return 4 * self.width * WINDOW + 6 * self.width**2

    @property
    def last_operations(self) -> int:
        """The operations of the convolution and the last feed-forward for one row."""
        return 6 * self.width * self.intermediate + 4 * self.width**2

    def rows(self, frames: int) -> int:
        """Return the rows of a recording."""
        return halved(frames, self.halvings)

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        limits = {
            "num_blocks": (self.layers, MAX_LAYERS),
            "hidden_size": (self.width, MAX_WIDTH),
            "num_attention_heads": (self.heads, self.width),
            "intermediate_size": (self.intermediate, MAX_WIDTH),
            "input_size": (self.mels, 1024),
            "time_reduction": (self.halvings, 8),
            "nemo_conv_channels": (self.channels, MAX_WIDTH),
            "kernel_size": (self.kernel, 1024),
            "bias_max_distance": (self.farthest, 1 << 16),
        }
        check_sizes(where, limits)
        if self.width % self.heads or self.head_dim % 8:
            raise ModelError(
                f"{where}: hidden_size {self.width} must be a multiple of 8 for each of"
                f" {self.heads} heads"
            )

    def shapes(self) -> dict[str, Shape]:
        """Return the names and shapes of all tensors after `audio_embed.`."""
        width, mels = self.width, halved(self.mels, self.halvings)
        shapes: dict[str, Shape] = {
            "encoder.encoder_embedding.global_mean": (self.mels,),
            "encoder.encoder_embedding.global_invstd": (self.mels,),
            "encoder.embed.conv.0.weight": (self.channels, 1, TAPS, TAPS),
            "encoder.embed.conv.0.bias": (self.channels,),
            "encoder.embed.out.weight": (width, self.channels * mels),
            "encoder.embed.out.bias": (width,),
            "encoder.relative_attention_bias_layer.bias_values.weight": (
                2 * self.farthest,
                self.heads,
            ),
        }
        for each, single in self.convolutions():
            shapes[f"{each}.weight"] = (self.channels, 1, TAPS, TAPS)
            shapes[f"{single}.weight"] = (self.channels, self.channels, 1, 1)
            shapes |= {f"{name}.bias": (self.channels,) for name in (each, single)}
        for use in ("speech", "vision_speech"):
            shapes |= _linear(f"up_proj_for_{use}", self.outputs, width)
            shapes |= _linear(f"down_proj_for_{use}", self.outputs, self.outputs)
        for index in range(self.layers):
            layer = f"encoder.encoders.{index}."
            shapes |= {layer + name: shape for name, shape in self._layer_shapes().items()}
        return shapes

    def convolutions(self) -> list[tuple[str, str]]:
        """Return the names of the convolutions after the first: over positions, then over
        channels. Two numbers belong to a convolution and one to the activation after it."""
        firsts = range(2, 2 + 3 * (self.halvings - 1), 3)
        return [(f"encoder.embed.conv.{n}", f"encoder.embed.conv.{n + 1}") for n in firsts]

    def _layer_shapes(self) -> dict[str, Shape]:
        width, inner = self.width, self.intermediate
        shapes: dict[str, Shape] = {
            "conv.glu.b1": (1, width, 1),
            "conv.glu.b2": (1, width, 1),
            "conv.glu.ext_pw_conv_1d.weight": (2 * width, width, 1),
            "conv.glu.ext_pw_conv_1d.bias": (2 * width,),
            "conv.dw_sep_conv_1d.dw_conv.weight": (width, 1, self.kernel),
            "conv.dw_sep_conv_1d.dw_conv.bias": (width,),
            "conv.dw_sep_conv_1d.pw_conv.weight": (width, width, 1),
            "conv.dw_sep_conv_1d.pw_conv.bias": (width,),
            "conv.ext_pw_conv_1d.weight": (width, width, 1),
            "conv.ext_pw_conv_1d.bias": (width,),
        }
        for part in "qkvo":
            shapes |= _linear(f"self_attn.{part}_proj", width, width)
        for feed in ("feed_forward_in", "feed_forward_out"):
            shapes |= norm_shapes(f"{feed}.layer_norm", width)
            shapes |= _linear(f"{feed}.gate_up_proj", 2 * inner, width)
            shapes |= _linear(f"{feed}.down_proj", width, inner)
        for norm in ("layer_norm_att", "conv.layer_norm", "layer_norm"):
            shapes |= norm_shapes(norm, width)
        return shapes

    def attention_bias(self, table: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the bias of each head for the distances in a window, [H, 2 * WINDOW - 1], as
        `Ops.bidirectional_attention` reads it. `table`: [2 * farthest, H], for the distances
        -farthest to farthest - 1."""
        distances = np.arange(1 - WINDOW, WINDOW)
        near = np.clip(distances, -self.farthest, self.farthest - 1)
        return np.ascontiguousarray(table[near + self.farthest].T)


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
