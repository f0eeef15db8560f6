"""Encodes float weights as a type of GGML. The bytes are those of a GGUF file, which
`ggml_types.TYPES[name].convert` turns into the layouts of the kernels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock import _native
from penstock.quant.bfloat16 import float32_to_bfloat16
from penstock.quant.encode.type_names import ENCODED, FLOATS
from penstock.quant.gguf.ggml_types import TYPES

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_LARGEST: Final = 65_504.0  # of float16, the type of scales


def encode(
    type_name: str,
    weights: Floats,
    importance: Floats | None = None,
    *,
    pool: _native.ThreadPool,
) -> Bytes:
    """Encode `weights` [N, C] as the type `type_name`, one of ENCODED; C must be a multiple of its
    block. Return the bytes [N, C / block * size].

    - `importance` [C]: how much the squared error of each column counts, for example the mean
      square of its inputs; None: all count equally. Float types ignore it.

    Raises ValueError if a weight or an importance is not finite, an importance is negative, or a
    weight is too large for the type. The result does not depend on the number of threads.
    """
    assert type_name in ENCODED
    weights = np.ascontiguousarray(weights, np.float32)
    rows, columns = weights.shape
    assert columns % TYPES[type_name].block == 0
    largest = max(abs(float(weights.max(initial=0))), abs(float(weights.min(initial=0))))
    if not np.isfinite(largest):
        raise ValueError("not all weights are finite")
    if largest > _LARGEST and type_name not in ("F32", "BF16"):
        raise ValueError(f"a weight is {largest:g}; {type_name} holds numbers up to {_LARGEST:g}")
    if type_name in FLOATS:
        return _floats(type_name, weights).view(np.uint8).reshape(rows, -1)
    if importance is not None:
        importance = _checked(importance, columns)
    encoded: Bytes = _native.encode_blocks(pool, type_name, weights, importance)
    return encoded


def _floats(type_name: str, weights: Floats) -> npt.NDArray[Any]:
    if type_name == "BF16":
        return float32_to_bfloat16(weights)
    return weights.astype("<f2") if type_name == "F16" else weights


def _checked(importance: Floats, columns: int) -> Floats:
    importance = np.ascontiguousarray(importance, np.float32)
    if importance.shape != (columns,):
        raise ValueError(f"importance has shape {importance.shape}, expected {columns} columns")
    if not np.isfinite(importance).all() or importance.min(initial=0) < 0:
        raise ValueError("not all importances are finite and at least 0")
    return importance
