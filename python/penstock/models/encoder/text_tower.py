"""The text tower of a model that embeds texts and images into one space: an encoder, whose last
token's state is projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.encoder.dense import DenseLayer
from penstock.models.encoder.sentence_transformers import PoolerSpec
from penstock.models.tokenizer.tokenizer_data import TextForm
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

TEXT_POOLER: Final = PoolerSpec("last", normalize=True)


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """All texts have the length of the model's context; shorter ones are padded. Padding is seen,
    as in training.

    - `token`, `side`: the token of padding and its place, unless tokenizer_config.json names
      others.
    """

    token: str
    side: Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class TextTower:
    """The parts of a text tower beside its encoder.

    - `projection`: the name of the projection's tensors without `.weight` and `.bias`.
    - `width`: the elements of an embedding.
    - `biased`: the projection has a bias.
    - `form`: the form in which texts are encoded.
    - `padding`: None: texts are not padded.
    - `end_token`: the first of these tokens in a text is its last one, unless
      tokenizer_config.json names another; None: texts are not cut.
    """

    projection: str
    width: int
    biased: bool
    form: TextForm = "as given"
    padding: PaddedTexts | None = None
    end_token: str | None = None

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        if self.width < 1:
            raise ModelError(f"{where}: the width of embeddings must be positive, not {self.width}")

    def shapes(self, hidden_size: int) -> dict[str, Shape]:
        """Return the name and shape of every tensor. `hidden_size`: the width of the encoder."""
        shapes: dict[str, Shape] = {f"{self.projection}.weight": (self.width, hidden_size)}
        if self.biased:
            shapes[f"{self.projection}.bias"] = (self.width,)
        return shapes

    def read_projection(self, checkpoint: Checkpoint) -> DenseLayer:
        """Read the projection as float32. The tensor shapes must have been checked."""
        weight = dequantize(checkpoint.matrix(f"{self.projection}.weight"))
        bias = checkpoint.vector(f"{self.projection}.bias") if self.biased else None
        return DenseLayer(Linear((Dense(weight.astype(np.float32), "f32"),), bias))
