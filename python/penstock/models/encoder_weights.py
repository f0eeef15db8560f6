"""Reading an encoder's weights, strictly: all that the spec asks for, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.kernels.weights import Dense, Linear, Matrix
from penstock.models.encoder_spec import EncoderSpec
from penstock.models.strict import Shape, check_shapes
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Vector = npt.NDArray[np.float32]

WORDS = "embeddings.word_embeddings"
POSITIONS = "embeddings.position_embeddings"
TYPES = "embeddings.token_type_embeddings"
EMBEDDING_NORM = "embeddings.LayerNorm"
LAYER = "encoder.layer.{}."
QKV = ("attention.self.query", "attention.self.key", "attention.self.value")
OUTPUT = "attention.output.dense"
OUTPUT_NORM = "attention.output.LayerNorm"
UP = "intermediate.dense"
DOWN = "output.dense"
DOWN_NORM = "output.LayerNorm"
PREFIXES = ("", "bert.", "roberta.")
# What is made for other tasks than embeddings, and what is computed.
IGNORED = re.compile(r".*(pooler\.dense\.(weight|bias)|embeddings\.position_ids)|(cls|lm_head)\..*")


@dataclass(frozen=True, slots=True)
class Norm:
    """Of a LayerNorm: [W] each."""

    weight: Vector
    bias: Vector


@dataclass(frozen=True, slots=True)
class EncoderLayerWeights:
    """One layer; `qkv` is q, k and v fused."""

    qkv: Linear
    output: Linear
    output_norm: Norm
    up: Linear
    down: Linear
    down_norm: Norm


class EncoderWeights:
    """The weights that `spec` asks for in `checkpoint`. `dtype` "f32" widens every matrix; "auto"
    keeps the file's own kind. Raises ModelError where the header is not what the spec says."""

    def __init__(
        self, checkpoint: Checkpoint, spec: EncoderSpec, dtype: Literal["auto", "f32"]
    ) -> None:
        self._checkpoint = checkpoint
        self._spec = spec
        self._dtype = dtype
        found = (p for p in PREFIXES if f"{p}{WORDS}.weight" in checkpoint.tensors)
        self._prefix = next(found, "")
        shapes = expected_shapes(spec)
        check_shapes(
            checkpoint, {self._prefix + name: shape for name, shape in shapes.items()}, {}, IGNORED
        )

    def words(self) -> Matrix:
        """[V, W]."""
        return self._matrix(f"{WORDS}.weight")

    def positions(self) -> Matrix:
        """[context, W] float32: what a token gets for its position, and for being of type 0."""
        rows = dequantize(self._checkpoint.matrix(f"{self._prefix}{POSITIONS}.weight"))
        rows = rows[self._spec.position_offset :]
        if self._spec.token_types:
            rows = rows + dequantize(self._checkpoint.matrix(f"{self._prefix}{TYPES}.weight"))[0]
        return Dense(np.ascontiguousarray(rows), "f32")

    def embedding_norm(self) -> Norm:
        return self._norm(EMBEDDING_NORM)

    def layer(self, index: int) -> EncoderLayerWeights:
        """One layer."""
        layer = LAYER.format(index)
        return EncoderLayerWeights(
            qkv=self._linear(*(layer + name for name in QKV)),
            output=self._linear(layer + OUTPUT),
            output_norm=self._norm(layer + OUTPUT_NORM),
            up=self._linear(layer + UP),
            down=self._linear(layer + DOWN),
            down_norm=self._norm(layer + DOWN_NORM),
        )

    def _matrix(self, name: str) -> Matrix:
        matrix = self._checkpoint.matrix(self._prefix + name)
        return Dense(dequantize(matrix), "f32") if self._dtype == "f32" else matrix

    def _vector(self, name: str) -> Vector:
        return self._checkpoint.vector(self._prefix + name)

    def _linear(self, *names: str) -> Linear:
        bias = np.concatenate([self._vector(f"{name}.bias") for name in names])
        return Linear(tuple(self._matrix(f"{name}.weight") for name in names), bias)

    def _norm(self, name: str) -> Norm:
        return Norm(self._vector(f"{name}.weight"), self._vector(f"{name}.bias"))


def expected_shapes(spec: EncoderSpec) -> dict[str, Shape]:
    """Every tensor that must be there, with its shape."""
    width = spec.width
    shapes: dict[str, Shape] = {
        f"{WORDS}.weight": (spec.vocab, width),
        f"{POSITIONS}.weight": (spec.positions, width),
    }
    if spec.token_types:
        shapes[f"{TYPES}.weight"] = (spec.token_types, width)
    linears = dict.fromkeys((*QKV, OUTPUT), (width, width))
    linears |= {UP: (spec.ff, width), DOWN: (width, spec.ff)}
    norms = [EMBEDDING_NORM]
    for index in range(spec.layers):
        layer = LAYER.format(index)
        norms += [layer + OUTPUT_NORM, layer + DOWN_NORM]
        for name, (rows, columns) in linears.items():
            shapes[f"{layer}{name}.weight"] = (rows, columns)
            shapes[f"{layer}{name}.bias"] = (rows,)
    for name in norms:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)
    return shapes
