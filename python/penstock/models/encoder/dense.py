"""The linear layers after pooling, and how they are read from a sentence-transformers folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from penstock.base.errors import ModelError
from penstock.kernels.weights import Linear
from penstock.models.checkpoint.check_shapes import Shape, check_shapes
from penstock.models.encoder.weights import Norm
from penstock.quant.json_file import read_json
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder

Activation: TypeAlias = Literal["tanh", "gelu"]


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer, followed by an optional activation and an optional LayerNorm."""

    linear: Linear
    activation: Activation | None = None
    norm: Norm | None = None
    norm_eps: float = 0.0


class _DenseConfig(msgspec.Struct):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.linear.Identity"


def read_dense(folder: Path, width: int) -> DenseLayer:
    """Read the linear layer in `folder`. `width`: the number of inputs that the layer must have.
    Raises ModelError naming the key that is not supported or does not fit."""
    path = folder / "config.json"
    config = read_json(path, _DenseConfig)
    activation = config.activation_function
    if activation.rpartition(".")[2] != "Identity":
        raise ModelError(f"{path}: activation_function {activation!r} is not supported")
    if config.in_features != width:
        raise ModelError(f"{path}: in_features is {config.in_features}, but must be {width}")
    shapes: dict[str, Shape] = {"linear.weight": (config.out_features, config.in_features)}
    if config.bias:
        shapes["linear.bias"] = (config.out_features,)
    checkpoint = SafetensorsFolder(folder)
    check_shapes(checkpoint, shapes, {}, None)
    bias = checkpoint.vector("linear.bias") if config.bias else None
    return DenseLayer(Linear((checkpoint.matrix("linear.weight"),), bias))
