"""Products of experts with weights in 8-bit floats, by the two kernels of `linear_float8` over
tiles of (token, chosen expert) pairs: "float8" rounds the activations to 8 bits too, if experts
have many rows; "widen" widens the weights and keeps the activations.

Only the weights of chosen experts are read; the rows of a tile share each read.
"""

from __future__ import annotations

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
from penstock.kernels.triton.linear_choice import (
    Float8Choice,
    choose_expert_float8,
    float8_capability,
)
from penstock.kernels.triton.matmul.float8_tile import narrow_product, widened_product
from penstock.kernels.triton.matmul.quantize_float8 import codes_type, quantize_float8
from penstock.kernels.triton.moe.expert_order import Order
from penstock.kernels.triton.moe.packed_experts import Float8Stack


@triton.jit(
    do_not_specialize=["choices", "first_column", "out_columns", "shared_by", "units", "groups"]
)
def experts_float8_kernel(
    out, x, x_scale, codes, scale, order, tile_expert, tiles,
    choices, first_column, out_columns, shared_by, units, groups,
    UNIT: tl.constexpr, SCALE_ROWS: tl.constexpr, GROUPED: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of products as `experts_kernel` does, with 8-bit activations and `units *
    UNIT` rows of 8-bit weights per expert, over `groups` groups of BLOCK_K columns."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    rows, width = units * UNIT, groups * BLOCK_K
    expert = tl.load(tile_expert + tile).to(tl.int64)
    choice = tl.load(order + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, exists = choice < choices, column < rows
    source = choice // shared_by
    x_row = x + source.to(tl.int64)[:, None] * width
    weight_row = codes + (expert * rows + column.to(tl.int64)[:, None]) * width
    scales = (rows + SCALE_ROWS - 1) // SCALE_ROWS
    first_scale = expert * scales * (groups if GROUPED else 1)
    total = narrow_product(
        x_row, weight_row, x_scale + source, choices // shared_by,
        scale + first_scale + column // SCALE_ROWS, scales,
        present, exists, groups, GROUPED, UPCAST, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    place = choice.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["choices", "first_column", "out_columns", "shared_by", "units"])
def widen_experts_kernel(
    out, x, codes, scale, order, tile_expert, tiles,
    choices, first_column, out_columns, shared_by, units,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of products as `experts_kernel` does, with `units * UNIT` rows of 8-bit
    weights per expert, which are widened in registers."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    rows = units * UNIT
    expert = tl.load(tile_expert + tile).to(tl.int64)
    choice = tl.load(order + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, exists = choice < choices, column < rows
    x_row = x + (choice // shared_by).to(tl.int64)[:, None] * WIDTH
    weight_row = codes + (expert * rows + column.to(tl.int64)[:, None]) * WIDTH
    scales = (rows + SCALE_ROWS - 1) // SCALE_ROWS
    groups = (WIDTH + BLOCK_K - 1) // BLOCK_K if GROUPED else 1
    total = widened_product(
        x_row, weight_row, scale + expert * groups * scales, scales, column // SCALE_ROWS,
        present, exists, WIDTH, GROUPED, WIDE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    place = choice.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & exists[None, :])


def choose_stack(
    stack: Float8Stack, choices: int, device: torch.device, invariant: bool
) -> Float8Choice:
    """Return the kernel for the weights `stack`, by the mean number of rows per expert. `choices`:
    number of (token, chosen expert) pairs."""
    count, rows, width = stack.shape
    rows_each = ceil_div(choices, count)
    return choose_expert_float8(rows_each, (rows, width), float8_capability(device), invariant)


def float8_products(
    kind: Float8Choice,
    out: torch.Tensor,
    x: torch.Tensor,
    stack: Float8Stack,
    order: Order,
    lists: tuple[torch.Tensor | int, ...],
) -> None:
    """Multiply x by `stack` with the kernel `kind`, and write the products to the columns of `out`
    that belong to `stack`. `lists`: the arguments of `experts_kernel` from `order` to
    `shared_by`."""
    _, rows, width = stack.shape
    units, unit = in_units(rows, FLOAT8_GROUP)
    operands: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...]
    if kind == "float8":
        kernel, sizes, tile = experts_float8_kernel, (units, width // FLOAT8_GROUP), (128, 4)
        operands = (*quantize_float8(x, stack.grouped), stack.codes.view(codes_type()))
        constants = {"UPCAST": int(interpreted())}
    else:
        wide = BF16_IS_BROKEN or x.dtype == torch.float32  # without tensor cores
        kernel, sizes, operands = widen_experts_kernel, (units,), (x, stack.codes)
        tile = (32, 2) if wide else (64 if order.rows > 16 else 32, 4)
        constants = {"WIDTH": width, "WIDE": int(wide)}
    block_n, stages = tile
    launch(
        kernel,
        (ceil_div(rows, block_n), order.capacity),
        *(out, *operands, stack.scale, *lists, *sizes),
        num_warps=4,
        num_stages=stages,
        UNIT=unit,
        SCALE_ROWS=stack.scale_rows,
        GROUPED=int(stack.grouped),
        BLOCK_M=order.rows,
        BLOCK_N=block_n,
        BLOCK_K=FLOAT8_GROUP,
        **constants,
    )
