"""Products of experts in 8-bit floats: activations as they are, the codes widened in registers.

What is read of an expert is its codes; a tile of many rows reuses what was widened for it.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton.experts_order import Order
from penstock.kernels.triton.experts_packed import Float8Stack
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.launch import BF16_IS_BROKEN, ceil_div, in_units, launch
from penstock.kernels.triton.linear_float8 import widened_product


@triton.jit(do_not_specialize=["choices", "first_column", "out_columns", "units"])
def experts_float8_kernel(
    out, x, codes, scale, order, tile_expert, tiles,
    choices, first_column, out_columns, units,
    UNIT: tl.constexpr, WIDTH: tl.constexpr, SHARED_BY: tl.constexpr, SCALE_ROWS: tl.constexpr,
    GROUPED: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """As `experts_kernel`, of `units * UNIT` rows of codes."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    rows = units * UNIT
    expert = tl.load(tile_expert + tile).to(tl.int64)
    choice = tl.load(order + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    present, exists = choice < choices, column < rows
    x_row = x + (choice // SHARED_BY).to(tl.int64)[:, None] * WIDTH
    weight_row = codes + (expert * rows + column.to(tl.int64)[:, None]) * WIDTH
    scales = (rows + SCALE_ROWS - 1) // SCALE_ROWS
    groups = (WIDTH + BLOCK_K - 1) // BLOCK_K if GROUPED else 1
    total = widened_product(
        x_row, weight_row, scale + expert * groups * scales, scales, column // SCALE_ROWS,
        present, exists, WIDTH, GROUPED, WIDE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    place = choice.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & exists[None, :])


def float8_products(
    out: torch.Tensor,
    x: torch.Tensor,
    stack: Float8Stack,
    order: Order,
    lists: tuple[torch.Tensor | int, ...],
    shared_by: int,
) -> None:
    """Write the columns of `out` that belong to `stack`. `lists`: of the choices, as the kernels of
    `experts` take them; `shared_by`: neighbouring choices that go with one row of x."""
    _, rows, width = stack.shape
    wide = BF16_IS_BROKEN or x.dtype == torch.float32
    units, unit = in_units(rows, FLOAT8_GROUP)
    block_n = 64 if order.rows > 16 and not wide else 32  # wide: without tensor cores
    launch(
        experts_float8_kernel,
        (ceil_div(rows, block_n), order.capacity),
        *(out, x, stack.codes, stack.scale, *lists, units),
        num_warps=4,
        num_stages=2 if wide else 4,
        UNIT=unit,
        WIDTH=width,
        SHARED_BY=shared_by,
        SCALE_ROWS=stack.scale_rows,
        GROUPED=int(stack.grouped),
        WIDE=int(wide),
        BLOCK_M=order.rows,
        BLOCK_N=block_n,
        BLOCK_K=FLOAT8_GROUP,
    )
