"""Products with weights in 8-bit floats, by one of two kernels: "float8" rounds the activations to
8 bits too and uses tensor cores that multiply 8-bit floats; "widen" widens the weights and keeps
the activations, for few rows and for GPUs without such tensor cores.

A scale covers one or more rows of weights and all columns, or 128 columns if scales are grouped.
Sums are float32. Tensor cores add 8-bit products with less precision, so "float8" adds their sums
of 128 columns in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.compile.launch import (
    BF16_IS_BROKEN,
    ceil_div,
    in_units,
    interpreted,
    launch,
)
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.linear_choice import Float8Choice, choose_float8, float8_capability
from penstock.kernels.triton.matmul.float8_tile import narrow_product, widened_product
from penstock.kernels.triton.matmul.linear_affine import rows_a_tile
from penstock.kernels.triton.matmul.packed_weights import PackedFloat8
from penstock.kernels.triton.matmul.quantize_float8 import codes_type, quantize_float8


@triton.jit(do_not_specialize=["tokens", "first_column", "out_columns", "units", "groups"])
def linear_float8_kernel(
    out,
    x,
    x_scale,
    codes,
    scale,
    bias,
    tokens,
    first_column,
    out_columns,
    units,
    groups,
    UNIT: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of 8-bit activations times `units * UNIT` rows of 8-bit weights, over `groups`
    groups of BLOCK_K columns."""
    rows, width = units * UNIT, groups * BLOCK_K
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, exists = token < tokens, column < rows
    x_row = x + token.to(tl.int64)[:, None] * width
    weight_row = codes + column.to(tl.int64)[:, None] * width
    scale_column, scales = column // SCALE_ROWS, (rows + SCALE_ROWS - 1) // SCALE_ROWS
    total = narrow_product(
        x_row, weight_row, x_scale + token, tokens, scale + scale_column, scales,
        present, exists, groups, GROUPED, UPCAST, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + first_column + column, mask=exists, other=0.0)[None, :]
    place = token.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["tokens", "first_column", "out_columns", "units"])
def widen_float8_kernel(
    out,
    x,
    codes,
    scale,
    bias,
    tokens,
    first_column,
    out_columns,
    units,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of unrounded activations times `units * UNIT` rows of weights, which are
    widened in registers. WIDTH is a constant, as in `linear_kernel`."""
    rows = units * UNIT
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, exists = token < tokens, column < rows
    x_row = x + token.to(tl.int64)[:, None] * WIDTH
    weight_row = codes + column.to(tl.int64)[:, None] * WIDTH
    scale_column, scales = column // SCALE_ROWS, (rows + SCALE_ROWS - 1) // SCALE_ROWS
    total = widened_product(
        x_row, weight_row, scale, scales, scale_column, present, exists,
        WIDTH, GROUPED, WIDE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + first_column + column, mask=exists, other=0.0)[None, :]
    place = token.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & exists[None, :])


@dataclass(frozen=True, slots=True)
class _Tile:
    m: int
    n: int
    warps: int
    stages: int


_INVARIANT = {"float8": _Tile(64, 64, 4, 4), "widen": _Tile(64, 32, 4, 3)}
"""The tile of each kernel for any number of rows; see `PackedLinear.invariant`."""


def _tile(kind: Float8Choice, tokens: int, rows: int, wide: bool) -> _Tile:
    if kind == "float8":
        return _Tile(64, 128, 4, 4) if tokens <= 64 else _Tile(128, 128, 8, 4)
    if wide:  # without tensor cores, larger tiles need too many registers
        return _Tile(rows_a_tile(tokens), 32, 4, 2)
    if tokens > 16:
        return _Tile(64, 128, 4, 3)
    # Few columns per program, so that every multiprocessor has some, and many loads in flight.
    return _Tile(16, 16, 4, 8) if rows <= 8192 else _Tile(16, 32, 4, 6)


def float8_product(out, x, part: PackedFloat8, bias, first_column: int, invariant: bool) -> None:
    """Multiply x by `part` with the kernel that `linear_choice` selects, and write the product to
    the columns of `out` from `first_column` on."""
    kind = choose_float8(len(x), part.shape, float8_capability(x.device), invariant)
    multiply(kind, out, x, part, bias, first_column, invariant)


def multiply(
    kind: Float8Choice,
    out: torch.Tensor,
    x: torch.Tensor,
    part: PackedFloat8,
    bias: torch.Tensor | None,
    first_column: int,
    invariant: bool = False,
) -> None:
    """Multiply x by `part` with the kernel `kind`, and write the product to the columns of `out`
    from `first_column` on. Triton has no kernels "staged" and "library": "widen" and "float8"
    replace them."""
    kind = "float8" if kind in ("float8", "library") else "widen"
    tokens, (rows, width) = len(x), part.shape
    wide = BF16_IS_BROKEN or x.dtype == torch.float32
    tile = _INVARIANT[kind] if invariant else _tile(kind, tokens, rows, wide)
    operands: tuple[torch.Tensor, ...] = (x, part.codes)
    units, unit = in_units(rows, FLOAT8_GROUP)
    sizes: tuple[int, ...] = (units,)
    constants = {"WIDTH": width, "WIDE": int(wide)}
    if kind == "float8":
        operands = (*quantize_float8(x, part.grouped), part.codes.view(codes_type()))
        sizes = (units, width // FLOAT8_GROUP)
        constants = {"UPCAST": int(interpreted())}
    launch(
        linear_float8_kernel if kind == "float8" else widen_float8_kernel,
        (ceil_div(rows, tile.n), ceil_div(tokens, tile.m)),
        *(out, *operands, part.scale, out if bias is None else bias),
        *(tokens, first_column, out.shape[1], *sizes),
        num_warps=tile.warps,
        num_stages=tile.stages,
        UNIT=unit,
        SCALE_ROWS=part.scale_rows,
        GROUPED=int(part.grouped),
        HAS_BIAS=int(bias is not None),
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        BLOCK_K=FLOAT8_GROUP,
        **constants,
    )
