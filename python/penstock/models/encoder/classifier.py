"""The classification head of a reranker: linear layers that turn the state of a text pair into one
logit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.encoder.dense import Activation, DenseLayer
from penstock.models.encoder.sentence_transformers import Pooling
from penstock.models.encoder.weights import Norm
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize


@dataclass(frozen=True, slots=True)
class ClassifierSpec:
    """The layers of a classification head: `pooling`, then `dense` with `activation`, then `norm`,
    then `output`.

    - `dense`, `norm`, `output`: tensor names without `.weight` or `.bias`; "" if the head lacks the
      layer.
    - `dense_bias`, `norm_bias`, `output_bias`: whether the layer has a bias.
    """

    pooling: Pooling
    output: str
    output_bias: bool = True
    dense: str = ""
    dense_bias: bool = True
    activation: Activation = "tanh"
    norm: str = ""
    norm_bias: bool = False
    norm_eps: float = 1e-5


DECODER_CLASSIFIER: Final = ClassifierSpec("last", "score", output_bias=False)
"""The classification head of every reranker that is built on a decoder."""


def classifier_shapes(spec: ClassifierSpec, width: int) -> dict[str, Shape]:
    """Return the name and shape of every tensor of the classification head. `width`: the model's
    width."""
    shapes = dict(_linear_shapes(spec.output, 1, width, biased=spec.output_bias))
    if spec.dense:
        shapes |= dict(_linear_shapes(spec.dense, width, width, biased=spec.dense_bias))
    if spec.norm:
        shapes[f"{spec.norm}.weight"] = (width,)
        if spec.norm_bias:
            shapes[f"{spec.norm}.bias"] = (width,)
    return shapes


def check_labels(checkpoint: Checkpoint, spec: ClassifierSpec) -> None:
    """Check that the classifier has exactly one label. Raises ModelError naming the tensor."""
    name = f"{spec.output}.weight"
    info = checkpoint.tensors.get(name)
    labels = 1 if info is None or not info.shape else info.shape[0]
    if labels != 1:
        raise ModelError(
            f"{checkpoint.path}: {name} has {labels} labels; only rerankers, with one label, are"
            " supported"
        )


def read_classifier(checkpoint: Checkpoint, spec: ClassifierSpec) -> tuple[DenseLayer, ...]:
    """Read the head's linear layers in order, as float32. The tensor shapes must have been
    checked."""
    output = DenseLayer(_linear(checkpoint, spec.output, biased=spec.output_bias))
    if not spec.dense:
        return (output,)
    dense = _linear(checkpoint, spec.dense, biased=spec.dense_bias)
    return DenseLayer(dense, spec.activation, _norm(checkpoint, spec), spec.norm_eps), output


def _linear(checkpoint: Checkpoint, name: str, *, biased: bool) -> Linear:
    weight = Dense(dequantize(checkpoint.matrix(f"{name}.weight")), "f32")
    return Linear((weight,), checkpoint.vector(f"{name}.bias") if biased else None)


def _norm(checkpoint: Checkpoint, spec: ClassifierSpec) -> Norm | None:
    if not spec.norm:
        return None
    weight = checkpoint.vector(f"{spec.norm}.weight")
    has_bias = spec.norm_bias
    bias = checkpoint.vector(f"{spec.norm}.bias") if has_bias else np.zeros_like(weight)
    return Norm(weight, bias)


def _linear_shapes(
    name: str, rows: int, columns: int, *, biased: bool
) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (rows, columns)
    if biased:
        yield f"{name}.bias", (rows,)
