"""Compares the names and shapes of a checkpoint's tensors with those that a model requires."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeAlias

from penstock.base.errors import ModelError
from penstock.quant.checkpoint import Checkpoint

Shape: TypeAlias = tuple[int, ...]

NO_TENSORS: Final[Mapping[str, Shape]] = MappingProxyType({})


def check_shapes(
    checkpoint: Checkpoint,
    expected: Mapping[str, Shape],
    optional: Mapping[str, Shape],
    ignored: re.Pattern[str] | None,
) -> None:
    """Check that a checkpoint has all `expected` tensors, and no others except those that are
    `optional` or match `ignored`. A bias of zeros, which quantizers add to every matrix, counts as
    absent, and a matrix of one row is a vector. Raises ModelError naming the first tensor that is
    missing, unexpected or of the wrong shape."""
    for name, shape in expected.items():
        info = checkpoint.tensors.get(name)
        if info is None:
            raise ModelError(f"{checkpoint.path}: tensor {name} is missing")
        if _without_one_row(info.shape) != _without_one_row(shape):
            raise ModelError(
                f"{checkpoint.path}: tensor {name} has shape {info.shape}, expected {shape}"
            )
    for name, info in checkpoint.tensors.items():
        if name in expected or (ignored and ignored.fullmatch(name)):
            continue
        if optional.get(name) != info.shape and not _is_zero_bias(checkpoint, name, expected):
            raise ModelError(f"{checkpoint.path}: unexpected tensor {name} of shape {info.shape}")


def _without_one_row(shape: Shape) -> Shape:
    return shape[1:] if len(shape) == 2 and shape[0] == 1 else shape


def _is_zero_bias(checkpoint: Checkpoint, name: str, expected: Mapping[str, Shape]) -> bool:
    module, _, last = name.rpartition(".")
    weight = expected.get(f"{module}.weight", ())
    fits = last == "bias" and len(weight) == 2 and checkpoint.tensors[name].shape == weight[:1]
    return fits and not checkpoint.vector(name).any()
