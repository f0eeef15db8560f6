"""Products of affine integer weights with activations quantized to int8. The product of a group of
columns is exact in int32; groups are added in order in float32."""

from __future__ import annotations

import torch

from penstock.kernels.ops.linear import ACTIVATION_GROUP
from penstock.kernels.triton.compile.launch import ceil_div, in_units, launch
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.matmul.packed_weights import PackedAffine

_GROUPS_A_PROGRAM = 16


@triton.jit(do_not_specialize=["groups"])
def quantize_kernel(q, scale, x, groups, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """Quantize groups of a row to symmetric int8: round x / (absmax / 127) to the nearest integer,
    half to even, and store the scale that fits these integers best (least squares)."""
    width = groups * GROUP
    token = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    place = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    values = tl.load(x + token * width + place, mask=place < width, other=0.0).to(tl.float32)
    step = tl.div_rn(tl.max(tl.abs(values), axis=1), 127.0)
    # `tl.max` ignores NaN: set the scale of a group with NaN to NaN.
    broken = tl.max((values != values).to(tl.int32), axis=1) > 0
    step = tl.where(broken, float("nan"), step)
    quanta = tl.div_rn(values, tl.where(step > 0, step, 1.0)[:, None])
    # Adding 1.5 * 2^23 leaves no bit below one: the addition itself rounds half to even.
    rounded = (quanta + 12582912.0) - 12582912.0
    tl.store(q + token * width + place, rounded.to(tl.int8), mask=place < width)
    squares = tl.sum(rounded * rounded, axis=1)
    usable = (step > 0) & (step < float("inf"))
    fitted = step * tl.div_rn(tl.sum(quanta * rounded, axis=1), tl.where(usable, squares, 1.0))
    inside = group < groups
    fitted = tl.where(usable, fitted, step)
    tl.store(scale + token * groups + group, fitted, mask=inside)


@triton.jit
def _integers(q, column, group, rows, groups, BITS: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the weights in group `group` of 32 columns, for the rows of weights `column`: int8
    [BLOCK_N, 32]. 128 is subtracted from stored 8-bit integers."""
    row = column.to(tl.int64)[:, None]
    inside = (column < rows)[:, None]
    if BITS == 4:
        packed = tl.load(
            q + row * (groups * 16) + group * 16 + tl.arange(0, 16)[None, :], mask=inside, other=0
        )
        integers = tl.join(packed & 15, packed >> 4).reshape(BLOCK_N, 32).to(tl.int8)
    else:
        stored = tl.load(
            q + row * (groups * 32) + group * 32 + tl.arange(0, 32)[None, :], mask=inside, other=0
        )
        integers = (stored.to(tl.int16) - 128).to(tl.int8)
    return integers


@triton.jit
def _add_group(
    total,
    left,
    right,
    step,
    scale,
    minimum,
    place,
    inside,
    OFFSET: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
):
    """Return total + step * (scale * (left @ right^T + OFFSET * sums) + minimum * sums), where sums
    are the row sums of `left`. Products and sums are exact in int32."""
    products = tl.dot(left, tl.trans(right), out_dtype=tl.int32)
    sums = tl.sum(left.to(tl.int32), axis=1)
    factor = tl.load(scale + place, mask=inside, other=0.0).to(tl.float32)
    part = factor[None, :] * (products + OFFSET * sums[:, None]).to(tl.float32)
    if HAS_MINIMUM:
        lowest = tl.load(minimum + place, mask=inside, other=0.0).to(tl.float32)
        part += lowest[None, :] * sums.to(tl.float32)[:, None]
    return total + step[:, None] * part


@triton.jit(do_not_specialize=["tokens", "first_column", "out_columns", "units", "groups"])
def linear_affine_kernel(
    out,
    x,
    x_scale,
    q,
    scale,
    minimum,
    bias,
    tokens,
    first_column,
    out_columns,
    units,
    groups,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute a tile of the product with `units * UNIT` rows of weights, over `groups` groups of 32
    activations. A group of weights has GROUP columns: several groups of activations, one, or half
    of one."""
    rows, width = units * UNIT, groups * 32
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, 32)
    present, inside = token < tokens, column < rows
    x_row = x + token.to(tl.int64)[:, None] * width + lane[None, :]
    step_row = x_scale + token.to(tl.int64) * groups
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for group in range(groups):
        left = tl.load(x_row + group * 32, mask=present[:, None], other=0)
        step = tl.load(step_row + group, mask=present, other=0.0)
        right = _integers(q, column, group, rows, groups, BITS, BLOCK_N)
        if GROUP >= 32:
            total = _add_group(
                total, left, right, step, scale, minimum,
                group // (GROUP // 32) * rows + column, inside, OFFSET, HAS_MINIMUM,
            )  # fmt: skip
        else:
            # int8 tensor cores multiply at least 32 columns: zeros hide the other half.
            for half in tl.static_range(2):
                hidden = tl.where((lane // 16 == half)[None, :], left, 0).to(tl.int8)
                total = _add_group(
                    total, hidden, right, step, scale, minimum,
                    (2 * group + half) * rows + column, inside, OFFSET, HAS_MINIMUM,
                )  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + first_column + column, mask=inside, other=0.0)[None, :]
    place = token.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & inside[None, :])


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x [T, C] quantized to int8 [T, C], and the float32 scales [T, C / 32]."""
    tokens, width = x.shape
    groups = width // ACTIVATION_GROUP
    q = torch.empty(tokens, width, dtype=torch.int8, device=x.device)
    scale = torch.empty(tokens, groups, dtype=torch.float32, device=x.device)
    grid = (tokens, ceil_div(groups, _GROUPS_A_PROGRAM))
    constants = {"GROUP": ACTIVATION_GROUP, "GROUPS": _GROUPS_A_PROGRAM}
    launch(quantize_kernel, grid, q, scale, x, groups, **constants)
    return q, scale


def rows_a_tile(tokens: int) -> int:
    """Return the rows of x in a tile: 16, the least that tensor cores need, for up to 16 tokens;
    otherwise 64, so that more rows reuse the weights that were read."""
    return 16 if tokens <= 16 else 64


def affine_product(out, q, scale, part: PackedAffine, bias, first_column: int) -> None:
    """Multiply quantized activations (`q`, `scale`: see `quantize`) by `part` and write the product
    to the columns of `out` from `first_column` on."""
    rows, width = part.shape
    units, unit = in_units(rows)
    block_m, block_n = rows_a_tile(len(q)), 64
    minimum = part.scale if part.minimum is None else part.minimum
    zero_point = part.zero_point if part.minimum is None else 0
    launch(
        linear_affine_kernel,
        (ceil_div(rows, block_n), ceil_div(len(q), block_m)),
        *(out, q, scale, part.q, part.scale, minimum, out if bias is None else bias),
        *(len(q), first_column, out.shape[1], units, width // ACTIVATION_GROUP),
        UNIT=unit,
        BITS=part.bits,
        GROUP=part.group,
        OFFSET=(128 if part.bits == 8 else 0) - zero_point,
        HAS_MINIMUM=int(part.minimum is not None),
        HAS_BIAS=int(bias is not None),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
    )
