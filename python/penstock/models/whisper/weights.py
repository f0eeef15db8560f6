"""Reads the weights of a Whisper model from its checkpoint."""

from __future__ import annotations

import re
from typing import Final, Literal

import numpy as np

from penstock.config.weight_types import WIDE, WeightForm
from penstock.kernels.weights import Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape, check_shapes
from penstock.models.towers.audio_spec import norm_shapes, qkv_linear, whisper_shapes
from penstock.models.towers.tower_weights import TowerTensors, tower_linear
from penstock.models.whisper.spec import WhisperSpec
from penstock.quant.checkpoint import Checkpoint

ENCODER: Final = "model.encoder."
DECODER: Final = "model.decoder."
# The head is the token embedding; some files store it twice.
_IGNORED: Final = re.compile(r"proj_out\.weight")


class WhisperWeights:
    """The tensors of a Whisper model, which must be exactly those of the spec.

    - `dtype`: "f32" dequantizes every matrix; "auto" keeps the file's type.
    - `encoder_bytes`: the bytes of the encoder's tensors in memory.

    Raises ModelError naming a tensor that is missing, unexpected or of the wrong shape.
    """

    def __init__(
        self, checkpoint: Checkpoint, spec: WhisperSpec, dtype: Literal["auto", "f32"]
    ) -> None:
        shapes = _shapes(spec)
        check_shapes(checkpoint, shapes, {}, _IGNORED)
        self.tensors = TowerTensors(checkpoint, "", shapes, dtype)
        encoder = {name: shape for name, shape in shapes.items() if name.startswith(ENCODER)}
        self.encoder_bytes = TowerTensors(checkpoint, "", encoder, dtype).size_bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of all tensors in memory."""
        return self.tensors.size_bytes

    def embedding(self) -> Matrix:
        """Return the embedding [V, W], which is also the head."""
        return self.tensors.matrix(f"{DECODER}embed_tokens.weight")

    def positions(self) -> Matrix:
        """Return the position table [max_tokens, W]."""
        return self.tensors.matrix(f"{DECODER}embed_positions.weight")

    def linear(self, name: str) -> Linear:
        """Return a linear layer of the decoder."""
        return self.tensors.linear([DECODER + name], biased=True)

    def qkv(self, layer: int) -> Linear:
        """Return the fused projection of queries, keys and values of the self-attention."""
        return qkv_linear(self.tensors, f"{DECODER}layers.{layer}.self_attn.", key_bias=False)

    def cross_keys_values(self, layer: int) -> Linear:
        """Return the fused projection of a window to keys and values, [2 W, W]."""
        prefix = f"{DECODER}layers.{layer}.encoder_attn."
        parts = tuple(self.tensors.matrix(f"{prefix}{name}_proj.weight") for name in ("k", "v"))
        values = self.tensors.vector(f"{prefix}v_proj.bias")
        return tower_linear(parts, np.concatenate([np.zeros_like(values), values]))


def _shapes(spec: WhisperSpec) -> dict[str, Shape]:
    width = spec.width
    shapes = whisper_shapes(spec.encoder, ENCODER) | norm_shapes(f"{ENCODER}layer_norm", width)
    shapes[f"{DECODER}embed_tokens.weight"] = (spec.vocab_size, width)
    shapes[f"{DECODER}embed_positions.weight"] = (spec.max_tokens, width)
    shapes |= norm_shapes(f"{DECODER}layer_norm", width)
    for index in range(spec.layers):
        prefix = f"{DECODER}layers.{index}."
        for attention in ("self_attn", "encoder_attn"):
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                shapes[f"{prefix}{attention}.{name}.weight"] = (width, width)
                if name != "k_proj":
                    shapes[f"{prefix}{attention}.{name}.bias"] = (width,)
            shapes |= norm_shapes(f"{prefix}{attention}_layer_norm", width)
        shapes[f"{prefix}fc1.weight"] = (spec.intermediate, width)
        shapes[f"{prefix}fc1.bias"] = (spec.intermediate,)
        shapes[f"{prefix}fc2.weight"] = (width, spec.intermediate)
        shapes[f"{prefix}fc2.bias"] = (width,)
        shapes |= norm_shapes(f"{prefix}final_layer_norm", width)
    return shapes


def quantized_forms(spec: WhisperSpec, form: WeightForm) -> dict[str, WeightForm]:
    """Return the type of each matrix that is quantized: 8 bits for the embedding, which is also the
    head. Convolutions and positions stay floats."""
    matrices: dict[str, WeightForm] = {
        name: form
        for name, shape in _shapes(spec).items()
        if len(shape) == 2 and "embed" not in name
    }
    return matrices | {f"{DECODER}embed_tokens.weight": WIDE}
