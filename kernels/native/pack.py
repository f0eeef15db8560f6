"""Weights as the extension takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import _native
from penstock.kernels.weights import Dense, Matrix


def matrix_source(matrix: Matrix) -> Any:
    """A matrix for packing; borrows its arrays."""
    if isinstance(matrix, Dense):
        dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[matrix.dtype]
        return _native.MatrixSource.dense(np.ascontiguousarray(matrix.data), dtype)
    return _native.MatrixSource.affine(
        matrix.bits,
        matrix.group,
        matrix.q,
        matrix.scale,
        matrix.minimum,
        matrix.zero_point,
        matrix.super_scale,
        matrix.super_minimum,
    )
