"""Embedding lookup: a program reads a tile of one row of the table and dequantizes integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.ops.embedding import EMBEDDING
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, in_units, launch, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.matmul.packed_weights import (
    PackedAffine,
    PackedDense,
    PackedFloat8,
    pack_matrix,
)
from penstock.kernels.weights import Matrix

_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class PackedTable:
    """An embedding table. `matrix`: the packed weights [V, W]. `dtype`: type of the rows that a
    lookup returns."""

    matrix: PackedDense | PackedAffine
    dtype: torch.dtype


@triton.jit(do_not_specialize=["factor", "units"])
def embedding_kernel(out, table, tokens, factor, units, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    width = units * UNIT
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    row = tl.load(tokens + place).to(tl.int64)
    values = tl.load(table + row * width + column, mask=inside).to(tl.float32) * factor
    tl.store(out + place * width + column, values, mask=inside)


@triton.jit(do_not_specialize=["factor", "rows", "units"])
def embedding_affine_kernel(
    out,
    q,
    scale,
    minimum,
    tokens,
    factor,
    rows,
    units,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO_POINT: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    width = units * UNIT
    place = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    row = tl.load(tokens + place).to(tl.int64)
    if BITS == 4:
        packed = tl.load(q + row * (units * (UNIT // 2)) + column // 2, mask=inside, other=0)
        integer = (packed.to(tl.int32) >> (4 * (column % 2))) & 15
    else:
        integer = tl.load(q + row * width + column, mask=inside, other=0).to(tl.int32)
    group = (column // GROUP).to(tl.int64) * rows + row
    step = tl.load(scale + group, mask=inside, other=0.0).to(tl.float32)
    if HAS_MINIMUM:
        values = step * integer + tl.load(minimum + group, mask=inside, other=0.0).to(tl.float32)
    else:
        values = step * (integer - ZERO_POINT)
    tl.store(out + place * width + column, values * factor, mask=inside)


def pack_embedding(table: Matrix, device: str, dtype: Any) -> PackedTable:
    matrix = pack_matrix(table, device, dtype)
    assert not isinstance(matrix, PackedFloat8), "no kernel gathers rows of 8-bit floats"
    return PackedTable(matrix, dtype)


def embedding(table: PackedTable, tokens: torch.Tensor, scale: float) -> torch.Tensor:
    """See `Ops.embedding`."""
    matrix = table.matrix
    vocabulary, width = matrix.shape
    units, unit = in_units(width)
    out = torch.empty(len(tokens), width, dtype=table.dtype, device=tokens.device)
    grid = (len(tokens), ceil_div(width, _BLOCK))
    if isinstance(matrix, PackedDense):
        rows = (out, matrix.data, tokens, scale, units)
        launch(embedding_kernel, grid, *rows, UNIT=unit, BLOCK=_BLOCK)
        return out
    launch(
        embedding_affine_kernel,
        grid,
        out,
        matrix.q,
        matrix.scale,
        matrix.scale if matrix.minimum is None else matrix.minimum,
        tokens,
        *(scale, vocabulary, units),
        UNIT=unit,
        BITS=matrix.bits,
        GROUP=matrix.group,
        ZERO_POINT=matrix.zero_point,
        HAS_MINIMUM=int(matrix.minimum is not None),
        BLOCK=_BLOCK,
    )
    return out


EMBEDDING.register(Impl("triton", embedding, why_not, pack_embedding, invariant_kinds=("float",)))
