"""Converts weights to the types that the extension module packs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock import _native
from penstock.kernels.lora_slots import LinearFactors, SlotSizes
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Dense, Float8, Matrix

_LARGEST_GROUP = 32


def matrix_source(matrix: Matrix) -> Any:
    """Return a matrix as the extension's `MatrixSource`, for packing. The result borrows the arrays
    of the matrix; only scales of groups of more than 32 columns are copied, repeated per 32
    columns. `Float8` is not supported: the loader has converted such matrices to bfloat16."""
    assert not isinstance(matrix, Float8), "the CPU has no products of 8-bit floats"
    if isinstance(matrix, Dense):
        dtype = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}[matrix.dtype]
        return _native.MatrixSource.dense(np.ascontiguousarray(matrix.data), dtype)
    matrix = split_groups(matrix, min(matrix.group, _LARGEST_GROUP))
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


class NativeSlots:
    """`kernels.lora_slots.AdapterSlots` over the extension module. `table`: an operand of its
    kernels."""

    def __init__(self, sizes: SlotSizes) -> None:
        self._linears = sizes.linears
        self.table = _native.AdapterSlots(
            sizes.capacity, sizes.max_rank, sizes.storage_dtype, list(sizes.linears)
        )

    def pack(self, factors: Sequence[LinearFactors]) -> Any:
        if [len(linear) for linear in factors] != [len(rows) for _, rows in self._linears]:
            raise ValueError("factors: must have an entry for each slice of each linear layer")
        return self.table.pack(
            [None if one is None else (one.a, one.b) for linear in factors for one in linear]
        )

    def install(self, slot: int, packed: Any) -> None:
        self.table.install(slot, packed)

    def clear(self, slot: int) -> None:
        self.table.clear(slot)
