"""A linear layer after the pooling, from a folder of sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.base.errors import ModelError
from penstock.kernels.weights import Linear
from penstock.models.strict import Shape, check_shapes
from penstock.quant.json_file import read_json
from penstock.quant.safetensors_file import SafetensorsFolder


class _DenseConfig(msgspec.Struct):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.linear.Identity"


def read_dense(folder: Path, width: int) -> Linear:
    """The layer in `folder`, which takes `width` numbers. Raises ModelError naming what is not
    supported or does not fit."""
    path = folder / "config.json"
    config = read_json(path, _DenseConfig)
    activation = config.activation_function
    if activation.rpartition(".")[2] != "Identity":
        raise ModelError(f"{path}: activation_function {activation!r} is not supported")
    if config.in_features != width:
        raise ModelError(f"{path}: in_features {config.in_features}, the layer gets {width}")
    shapes: dict[str, Shape] = {"linear.weight": (config.out_features, config.in_features)}
    if config.bias:
        shapes["linear.bias"] = (config.out_features,)
    checkpoint = SafetensorsFolder(folder)
    check_shapes(checkpoint, shapes, {}, None)
    bias = checkpoint.vector("linear.bias") if config.bias else None
    return Linear((checkpoint.matrix("linear.weight"),), bias)
