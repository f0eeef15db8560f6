"""Places the embeddings of images, videos and recordings; a program computes a tile of one row."""

from __future__ import annotations

from collections.abc import Callable

import torch

from penstock.kernels.ops.media import ADD_ROWS, MROPE_ROWS, REPLACE_ROWS
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 1024


@triton.jit
def indexed_rows_kernel(
    out, x, rows, index, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr
):
    """Replace row t of x by rows[index[t]], or add that row if ADDS; copy it if index[t] is
    negative."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    row = tl.load(index + token).to(tl.int64)
    values = tl.load(x + token * WIDTH + column, mask=inside, other=0.0)
    # Row 0 stands in for a row that is not used: it exists, and caches hold it.
    chosen = tl.load(rows + tl.maximum(row, 0) * WIDTH + column, mask=inside, other=0.0)
    if ADDS:
        summed = values.to(tl.float32) + chosen.to(tl.float32)
        values = tl.where(row >= 0, summed, values.to(tl.float32))
    else:
        values = tl.where(row >= 0, chosen, values)
    tl.store(out + token * WIDTH + column, values, mask=inside)


@triton.jit
def mrope_rows_kernel(
    out, table, time, height, width, axis, PAIRS: tl.constexpr, BLOCK: tl.constexpr
):
    """Gather the cosines and sines of one token."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < PAIRS
    which = tl.load(axis + pair, mask=inside, other=0)
    at_height = tl.where(which == 1, tl.load(height + token), tl.load(width + token))
    position = tl.where(which == 0, tl.load(time + token), at_height).to(tl.int64)
    source = table + position * (2 * PAIRS) + pair
    target = out + token * (2 * PAIRS) + pair
    tl.store(target, tl.load(source, mask=inside), mask=inside)
    tl.store(target + PAIRS, tl.load(source + PAIRS, mask=inside), mask=inside)


def _indexed(
    adds: bool,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    def indexed(x: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """See `Ops.replace_rows` and `Ops.add_rows`. `x` and `rows` are contiguous and of one
        type."""
        tokens, width = x.shape
        out = torch.empty_like(x)
        grid = (tokens, ceil_div(width, _BLOCK))
        launch(indexed_rows_kernel, grid, out, x, rows, index, WIDTH=width, BLOCK=_BLOCK, ADDS=adds)
        return out

    return indexed


def mrope_rows(
    table: torch.Tensor,
    time: torch.Tensor,
    height: torch.Tensor,
    width: torch.Tensor,
    axis: torch.Tensor,
) -> torch.Tensor:
    """See `Ops.mrope_rows`. `table` is contiguous."""
    pairs = len(axis)
    out = table.new_empty(len(time), 2 * pairs)
    operands = (out, table, time, height, width, axis)
    block = triton.next_power_of_2(pairs)
    launch(mrope_rows_kernel, (len(time),), *operands, PAIRS=pairs, BLOCK=block)
    return out


REPLACE_ROWS.register(Impl("triton", _indexed(False), why_not, invariant_kinds=("exact",)))
ADD_ROWS.register(Impl("triton", _indexed(True), why_not, invariant_kinds=("float",)))
MROPE_ROWS.register(Impl("triton", mrope_rows, why_not, invariant_kinds=("exact",)))
