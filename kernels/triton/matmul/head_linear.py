"""Products of each head with a matrix of its own, and the queries of latent attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from penstock.kernels.latent_ops import LatentSizes, head_matrices
from penstock.kernels.ops.head_linear import HEAD_LINEAR
from penstock.kernels.ops.latent_attention import LATENT_QUERY
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton.compile.launch import (
    BF16_IS_BROKEN,
    ceil_div,
    launch,
    power_of_two,
    why_not,
)
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.matmul.packed_weights import PackedDense, pack_matrix
from penstock.kernels.weights import Linear

_HEADS_A_PROGRAM = 16


@triton.jit(do_not_specialize=["tokens"])
def head_linear_kernel(
    out,
    x,
    weight,
    tokens,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN_WIDTH: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of the products of one head: multiply the head's first WIDTH of IN_WIDTH
    columns of x by its matrix [ROWS, WIDTH], and write the product to the head's first ROWS of
    OUT_WIDTH columns of out."""
    head = tl.program_id(2)
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    present, exists = (token < tokens)[:, None], (column < ROWS)[:, None]
    x_row = x + (token.to(tl.int64) * HEADS + head)[:, None] * IN_WIDTH
    weight_row = weight + (head.to(tl.int64) * ROWS + column.to(tl.int64))[:, None] * WIDTH
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        k = start + lane
        inside = (k < WIDTH)[None, :]
        left = tl.load(x_row + k[None, :], mask=present & inside, other=0.0)
        right = tl.load(weight_row + k[None, :], mask=exists & inside, other=0.0)
        left = left.to(right.dtype)
        if UPCAST:
            left, right = left.to(tl.float32), right.to(tl.float32)
        total = tl.dot(left, tl.trans(right), total, input_precision="ieee")
    place = (token.to(tl.int64) * HEADS + head)[:, None] * OUT_WIDTH + column[None, :]
    tl.store(out + place, total, mask=present & (column < ROWS)[None, :])


@triton.jit
def rotate_heads_kernel(
    out,
    x,
    rope,
    positions,
    HEADS: tl.constexpr,
    ROTATED: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    IN_WIDTH: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Rotate the last ROTATED of the IN_WIDTH columns of some heads of one token, and write them to
    the last columns of the OUT_WIDTH columns of these heads in out."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    half: tl.constexpr = ROTATED // 2
    lane = tl.arange(0, BLOCK)
    inside = (head < HEADS)[:, None] & (lane < half)[None, :]
    source = x + (token * HEADS + head)[:, None] * IN_WIDTH + (IN_WIDTH - ROTATED) + lane[None, :]
    first = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=inside, other=0.0).to(tl.float32)
    angles = rope + tl.load(positions + token).to(tl.int64) * ROTATED + lane
    cosine = tl.load(angles, mask=lane < half, other=1.0).to(tl.float32)[None, :]
    sine = tl.load(angles + half, mask=lane < half, other=0.0).to(tl.float32)[None, :]
    place = (token * HEADS + head)[:, None] * OUT_WIDTH + (OUT_WIDTH - ROTATED) + lane[None, :]
    tl.store(out + place, first * cosine - second * sine, mask=inside)
    tl.store(out + place + half, second * cosine + first * sine, mask=inside)


@dataclass(frozen=True, slots=True)
class PackedHeads:
    """The matrices of all heads: `data: [heads, N, C]` in float32, float16 or bfloat16."""

    data: torch.Tensor


def pack_head_linear(weight: Linear, device: str, dtype: torch.dtype) -> PackedHeads:
    """Return the matrices of all heads on the device, in the types of `pack_matrix`. Raises
    ValueError for weights that `head_matrices` refuses."""
    packed = (pack_matrix(part, device, dtype) for part in head_matrices(weight))
    return PackedHeads(torch.stack([part.data for part in packed if isinstance(part, PackedDense)]))


def _products(
    out: torch.Tensor, x: torch.Tensor, weight: PackedHeads, in_width: int, out_width: int
) -> None:
    """Write the product of the first columns of each head of x to the first columns of the head in
    `out`. `in_width`, `out_width`: columns of a head in x and in `out`."""
    heads, rows, width = weight.data.shape
    tokens = x.shape[0]
    single = weight.data.dtype == torch.float32
    block_m = 16 if tokens <= 16 or single else 64
    block_n = 64
    launch(
        head_linear_kernel,
        (ceil_div(rows, block_n), ceil_div(tokens, block_m), heads),
        *(out, x, weight.data, tokens),
        num_warps=4,
        num_stages=3,
        HEADS=heads,
        ROWS=rows,
        WIDTH=width,
        OUT_WIDTH=out_width,
        IN_WIDTH=in_width,
        UPCAST=int(BF16_IS_BROKEN and weight.data.dtype == torch.bfloat16),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=32 if single else 64,
    )


def head_linear(x: torch.Tensor, weight: PackedHeads) -> torch.Tensor:
    """See `Ops.head_linear`. `x` is contiguous."""
    heads, rows, width = weight.data.shape
    out = x.new_empty(x.shape[0], heads * rows)
    _products(out, x, weight, width, rows)
    return out


def latent_query(
    q: torch.Tensor,
    rope: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    weight: PackedHeads,
    sizes: LatentSizes,
) -> torch.Tensor:
    """See `Ops.latent_query`. `q` and `rope` are contiguous."""
    heads, tokens = sizes.heads, q.shape[0]
    in_width, out_width = q.shape[1] // heads, sizes.latent + sizes.rotated
    out = q.new_empty(tokens, heads * out_width)
    _products(out, q, weight, in_width, out_width)
    launch(
        rotate_heads_kernel,
        (tokens, ceil_div(heads, _HEADS_A_PROGRAM)),
        *(out, q, rope, inputs.positions),
        HEADS=heads,
        ROTATED=sizes.rotated,
        OUT_WIDTH=out_width,
        IN_WIDTH=in_width,
        BLOCK_H=_HEADS_A_PROGRAM,
        BLOCK=power_of_two(sizes.rotated // 2),
    )
    return out


HEAD_LINEAR.register(Impl("triton", head_linear, why_not, pack_head_linear))
LATENT_QUERY.register(Impl("triton", latent_query, why_not))
