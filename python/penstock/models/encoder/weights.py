"""Reads the weights of an encoder from a checkpoint, which must have exactly the tensors of the
spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Dense, Linear, Matrix
from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape, check_shapes
from penstock.models.checkpoint.matrix_forms import matrix_forms
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Vector = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Norm:
    """The weight and bias of a LayerNorm, [W] each. The bias is zeros if the model has none."""

    weight: Vector
    bias: Vector


@dataclass(frozen=True, slots=True)
class EncoderLayerWeights:
    """The weights of one layer. `qkv`: q, k and v fused. `up`: gate and up fused, or only up."""

    qkv: Linear
    output: Linear
    attention_norm: Norm
    up: Linear
    down: Linear
    mlp_norm: Norm


class EncoderWeights:
    """Reads the weights that `spec` requires from `checkpoint`.

    - `names`: the names of the tensors.
    - `dtype`: "f32" dequantizes every matrix; "auto" keeps the file's type.
    - `also_expected`: further tensors that must exist, which the caller reads.

    Raises ModelError naming a tensor that is missing, unexpected or of the wrong shape.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: EncoderNames,
        spec: EncoderSpec,
        dtype: Literal["auto", "f32"],
        also_expected: Mapping[str, Shape] = NO_TENSORS,
    ) -> None:
        self._checkpoint = checkpoint
        self._names = names
        self._spec = spec
        self._dtype = dtype
        self._prefix = names.prefix(checkpoint.tensors)
        shapes = expected_shapes(names, spec)
        prefixed = {self._prefix + name: shape for name, shape in shapes.items()}
        check_shapes(checkpoint, prefixed | dict(also_expected), {}, names.ignored)

    def word_embeddings(self) -> Matrix:
        """Return the word embeddings [V, W]."""
        return self._matrix(self._names.word_embeddings)

    def positions(self, max_model_len: int) -> Matrix | None:
        """Return the sums of position and token type embeddings, [segments * max_model_len, W]
        float32, ordered by token type; None if the model has neither."""
        spec = self._spec
        if not spec.positions and not spec.token_types:
            return None
        rows = np.zeros((spec.segments, max_model_len, spec.hidden_size), np.float32)
        if spec.positions:
            of_positions = dequantize(self._source(self._names.position_embeddings))
            rows += of_positions[spec.position_offset :][:max_model_len]
        if spec.token_types:
            types = dequantize(self._source(self._names.token_type_embeddings))
            rows += types[: spec.segments, None]
        return Dense(rows.reshape(-1, spec.hidden_size), "f32")

    def embedding_norm(self) -> Norm:
        """Return the norm that is applied to the embeddings."""
        return self._norm(self._names.embedding_norm)

    def relative_biases(self) -> Vector | None:
        """Return the biases on attention scores by bucket of relative distance, [buckets, H]; None
        if the model has none."""
        if not self._spec.relative_buckets:
            return None
        biases: Vector = dequantize(self._source(self._names.relative))
        return biases

    def layer(self, index: int) -> EncoderLayerWeights:
        """Read the weights of layer `index`."""
        names, spec = self._names, self._spec
        layer = names.layer.format(index)
        return EncoderLayerWeights(
            qkv=self._linear([layer + name for name in names.qkv], biased=spec.attention_bias),
            output=self._linear([layer + names.output], biased=spec.attention_bias),
            attention_norm=self._norm(layer + names.attention_norm),
            up=self._linear([layer + name for name in names.up], biased=spec.mlp_bias),
            down=self._linear([layer + names.down], biased=spec.mlp_bias),
            mlp_norm=self._norm(names.norm_after(index, spec.layers)),
        )

    def forms(self) -> tuple[MatrixForm, ...]:
        """Return the storage formats and sizes of the matrices."""
        shapes = expected_shapes(self._names, self._spec)
        prefixed = {self._prefix + name: shape for name, shape in shapes.items()}
        return matrix_forms(self._checkpoint, prefixed, self._as_asked)

    def _source(self, name: str) -> Matrix:
        return self._checkpoint.matrix(f"{self._prefix}{name}.weight")

    def _matrix(self, name: str) -> Matrix:
        return self._as_asked(self._source(name))

    def _as_asked(self, matrix: Matrix) -> Matrix:
        return Dense(dequantize(matrix), "f32") if self._dtype == "f32" else matrix

    def _vector(self, name: str) -> Vector:
        return self._checkpoint.vector(self._prefix + name)

    def _linear(self, names: list[str], *, biased: bool) -> Linear:
        bias = np.concatenate([self._vector(f"{name}.bias") for name in names]) if biased else None
        return Linear(tuple(map(self._matrix, names)), bias)

    def _norm(self, name: str) -> Norm:
        weight = self._vector(f"{name}.weight")
        has_bias = self._spec.norm_bias
        return Norm(weight, self._vector(f"{name}.bias") if has_bias else np.zeros_like(weight))


def expected_shapes(names: EncoderNames, spec: EncoderSpec) -> dict[str, Shape]:
    """Return the name and shape of every required tensor."""
    width = spec.hidden_size
    shapes: dict[str, Shape] = {f"{names.word_embeddings}.weight": (spec.vocab_size, width)}
    if spec.positions:
        shapes[f"{names.position_embeddings}.weight"] = (spec.positions, width)
    if spec.token_types:
        shapes[f"{names.token_type_embeddings}.weight"] = (spec.token_types, width)
    if spec.relative_buckets:
        shapes[f"{names.relative}.weight"] = (spec.relative_buckets, spec.num_heads)
    norms = [names.embedding_norm]
    for index in range(spec.layers):
        layer = names.layer.format(index)
        norms += [layer + names.attention_norm, names.norm_after(index, spec.layers)]
        for name, (rows, columns, biased) in _linear_shapes(names, spec).items():
            shapes[f"{layer}{name}.weight"] = (rows, columns)
            if biased:
                shapes[f"{layer}{name}.bias"] = (rows,)
    for name in norms:
        shapes[f"{name}.weight"] = (width,)
        if spec.norm_bias:
            shapes[f"{name}.bias"] = (width,)
    return shapes


def _linear_shapes(names: EncoderNames, spec: EncoderSpec) -> dict[str, tuple[int, int, bool]]:
    """Return (rows, columns, has a bias) of each linear layer of an encoder layer."""
    width, up = spec.hidden_size, spec.intermediate_size * (2 if spec.gated else 1)
    shapes = dict.fromkeys(names.qkv, (3 * width // len(names.qkv), width, spec.attention_bias))
    shapes[names.output] = (width, width, spec.attention_bias)
    shapes |= dict.fromkeys(names.up, (up // len(names.up), width, spec.mlp_bias))
    shapes[names.down] = (width, spec.intermediate_size, spec.mlp_bias)
    return shapes
