"""Linear layers. Dense weights are streamed for few rows and multiplied by cuBLAS for many
(`linear_choice` selects); affine weights are multiplied exactly in int8 (`linear_affine`); weights
in 8-bit floats are multiplied by the kernels of `linear_float8`.

With `PackedLinear.invariant` one kernel and one tile serve any number of rows, so that the order of
a row's sum does not depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from penstock.kernels.ops.linear import LINEAR
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import (
    BF16_IS_BROKEN,
    ceil_div,
    in_units,
    launch,
    why_not,
)
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.linear_choice import capability_of, choose, choose_float8
from penstock.kernels.triton.matmul import library_float8
from penstock.kernels.triton.matmul.linear_affine import affine_product, quantize, rows_a_tile
from penstock.kernels.triton.matmul.linear_float8 import float8_product
from penstock.kernels.triton.matmul.packed_weights import (
    Packed,
    PackedAffine,
    PackedDense,
    PackedFloat8,
    in_float8,
    one_scale_a_row,
    pack_matrix,
    with_tile_scale,
)
from penstock.kernels.weights import Linear


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A packed linear layer.

    `parts`: matrices whose results are neighbouring columns; dense matrices of one type are merged
    into one.
    `bias: [N]`: float32, or None.
    `result`: type of the product, None for the type of x.
    `invariant`: use one kernel with one tile for any number of rows.
    """

    parts: tuple[Packed, ...]
    bias: torch.Tensor | None
    result: torch.dtype | None = None
    invariant: bool = False


@triton.jit(do_not_specialize=["tokens", "first_column", "out_columns", "units"])
def linear_kernel(
    out,
    x,
    weight,
    bias,
    tokens,
    first_column,
    out_columns,
    units,
    UNIT: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of x times the transpose of `units * UNIT` rows of weights. WIDTH is a
    constant, so that the compiler puts the offsets of rows into the instructions."""
    rows = units * UNIT
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    present, exists = (token < tokens)[:, None], (column < rows)[:, None]
    x_row = x + token.to(tl.int64)[:, None] * WIDTH
    weight_row = weight + column.to(tl.int64)[:, None] * WIDTH
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        k = start + lane
        x_mask, weight_mask = present, exists
        if WIDTH % BLOCK_K != 0:
            inside = (k < WIDTH)[None, :]
            x_mask, weight_mask = present & inside, exists & inside
        left = tl.load(x_row + k[None, :], mask=x_mask, other=0.0)
        right = tl.load(weight_row + k[None, :], mask=weight_mask, other=0.0)
        left = left.to(right.dtype)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + first_column + column, mask=column < rows, other=0.0)[None, :]
    place = token.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present & (column < rows)[None, :])


def pack_linear(weight: Linear, device: str, dtype: torch.dtype) -> PackedLinear:
    parts = tuple(pack_matrix(part, device, dtype) for part in weight.parts)
    bias = None if weight.bias is None else torch.from_numpy(weight.bias).to(device)
    return PackedLinear(_merged(parts), bias)


def rounded_to_float8(weight: PackedLinear) -> PackedLinear:
    """Return the layer with its dense parts rounded to 8-bit floats."""
    parts = tuple(
        in_float8(part) if isinstance(part, PackedDense) else part for part in weight.parts
    )
    return replace(weight, parts=_merged(parts))


def _merged(parts: tuple[Packed, ...]) -> tuple[Packed, ...]:
    """Merge the parts into one if all are dense and of one type, or if all are 8-bit floats with
    the same grouping of columns; otherwise return them as they are."""
    eight_bits = [part for part in parts if isinstance(part, PackedFloat8)]
    if len(eight_bits) == len(parts) > 1 and len({part.grouped for part in eight_bits}) == 1:
        return (_joined(eight_bits),)
    dense = [part.data for part in parts if isinstance(part, PackedDense)]
    if len(parts) == 1 or len(dense) < len(parts) or len({data.dtype for data in dense}) > 1:
        return parts
    return (PackedDense(torch.cat(dense)),)


def _joined(parts: list[PackedFloat8]) -> PackedFloat8:
    """Join matrices of 8-bit floats into one. If the matrices differ in rows per scale, or rows
    with one scale would span two matrices, every row gets its own scale."""
    heights = {part.scale_rows for part in parts}
    if len(heights) > 1 or any(part.shape[0] % part.scale_rows for part in parts[:-1]):
        parts = [one_scale_a_row(part) for part in parts]
    codes, scale = torch.cat([part.codes for part in parts]), [part.scale for part in parts]
    joined = PackedFloat8(codes, torch.cat(scale, dim=1), parts[0].scale_rows, parts[0].grouped)
    return with_tile_scale(joined)


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """See `Ops.linear`. `x` is contiguous."""
    (first, *others), tokens = weight.parts, x.shape[0]
    if (
        not others
        and isinstance(first, PackedDense)
        and not weight.invariant
        and x.is_cuda
        and x.dtype == first.data.dtype
        and choose(tokens, first.shape, capability_of(x.device)) != "stream"
    ):
        return _library(x, first.data, weight)
    result = weight.result or x.dtype
    if not others and isinstance(first, PackedFloat8) and x.is_cuda:
        capability = capability_of(x.device)
        choice = choose_float8(tokens, first.shape, capability, weight.invariant)
        if choice == "library" and library_float8.serves(first, result, capability):
            return library_float8.library_product(x, first, weight.bias)
    columns = sum(part.shape[0] for part in weight.parts) if others else first.shape[0]
    out = x.new_empty(tokens, columns, dtype=result)
    quantized = None
    first_column = 0
    for part in weight.parts:
        if isinstance(part, PackedAffine):
            quantized = quantized or quantize(x)
            affine_product(out, *quantized, part, weight.bias, first_column)
        elif isinstance(part, PackedFloat8):
            float8_product(out, x, part, weight.bias, first_column, weight.invariant)
        else:
            _dense(out, x, part, weight.bias, first_column, weight.invariant)
        first_column += part.shape[0]
    return out


def _library(x: torch.Tensor, data: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """Compute the product by cuBLAS, with sums in float32, and add the bias."""
    if weight.result not in (None, x.dtype):
        out = torch.mm(x, data.t(), out_dtype=weight.result)
        return out if weight.bias is None else out.add_(weight.bias)
    if weight.bias is None:
        return torch.mm(x, data.t())
    return torch.addmm(weight.bias.to(x.dtype), x, data.t())


@dataclass(frozen=True, slots=True)
class _Tile:
    """The tile of a dense product: `m` rows of x, `n` rows of weights, `k` columns at a time.
    Streaming weights needs many programs with many loads in flight; it does not reuse weights."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


def _tile(tokens: int, rows: int, width: int, dtype: torch.dtype) -> _Tile:
    if dtype == torch.float32:  # without tensor cores, larger tiles need too many registers
        return _Tile(rows_a_tile(tokens), 64, 32, 4, 3)
    if tokens > 16:
        return _Tile(64, 128, 64, 4, 3)
    few = rows <= 8192  # narrower tiles, so that every multiprocessor has some
    return _Tile(16, 16 if few else 32, 256 if width % 256 == 0 else 64, 4, 4)


_INVARIANT = _Tile(64, 32, 64, 4, 3)
"""The tile of deterministic mode, a compromise between few rows, which need many programs, and
prompts, which need high tiles."""


def _dense(out, x, part: PackedDense, bias, first_column: int, invariant: bool = False) -> None:
    (rows, width), tokens = part.shape, x.shape[0]
    tile = _INVARIANT if invariant else _tile(tokens, rows, width, part.data.dtype)
    units, unit = in_units(rows)
    launch(
        linear_kernel,
        (ceil_div(rows, tile.n), ceil_div(tokens, tile.m)),
        *(out, x, part.data, out if bias is None else bias),
        *(tokens, first_column, out.shape[1], units),
        num_warps=tile.warps,
        num_stages=tile.stages,
        UNIT=unit,
        WIDTH=width,
        HAS_BIAS=int(bias is not None),
        UPCAST=int(BF16_IS_BROKEN and part.data.dtype == torch.bfloat16),
        BLOCK_M=tile.m,
        BLOCK_N=tile.n,
        BLOCK_K=tile.k,
    )


LINEAR.register(
    Impl("triton", linear, why_not, pack_linear, invariant_kinds=("integer", "nibbles"))
)
