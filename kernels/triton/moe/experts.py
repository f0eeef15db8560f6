"""Mixture of experts: products of tokens with the weights of their chosen experts.

A pair (`choice` in the code) is a token with one of its chosen experts. Pairs are sorted by expert,
and a tile of rows belongs to one expert (`expert_order`); a program reads which expert, and gathers
its rows of x. Results are stored by the number of the pair, so that the results of a token are
neighbours and are summed in order.
"""

from __future__ import annotations

from functools import partial

import torch

from penstock.kernels.ops.experts import EXPERTS
from penstock.kernels.ops.linear import ACTIVATION_GROUP
from penstock.kernels.registry import Impl
from penstock.kernels.triton.activation import silu_mul
from penstock.kernels.triton.compile.launch import (
    BF16_IS_BROKEN,
    ceil_div,
    in_units,
    launch,
    why_not,
)
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.matmul.linear_affine import _add_group, _integers, quantize
from penstock.kernels.triton.moe.expert_order import Order, order_choices
from penstock.kernels.triton.moe.experts_float8 import choose_stack, float8_products
from penstock.kernels.triton.moe.packed_experts import (
    AffineStack,
    DenseStack,
    Float8Stack,
    PackedExperts,
    Stack,
    pack_experts,
)
from penstock.kernels.weights import ExpertActivation

_COMBINED = 1024
_ROWS_OF_LARGE_TILES = 256
"""Rows per expert from which tiles of 128 rows are faster: 15 % at 512 rows, even at 128 (H200)."""
_ACTIVATIONS: tuple[ExpertActivation, ...] = ("silu", "gelu_tanh", "relu_squared", "swiglu_oai")


@triton.jit(do_not_specialize=["choices", "first_column", "out_columns", "shared_by"])
def experts_kernel(
    out,
    x,
    weight,
    order,
    tile_expert,
    tiles,
    choices,
    first_column,
    out_columns,
    shared_by,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute a tile of products: for each (token, chosen expert) pair `choice`, multiply row
    `choice // shared_by` of x by the expert's weights and write the product to row `choice` of
    out."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    expert = tl.load(tile_expert + tile).to(tl.int64)
    choice = tl.load(order + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, BLOCK_K)
    present, exists = (choice < choices)[:, None], (column < ROWS)[:, None]
    x_row = x + (choice // shared_by).to(tl.int64)[:, None] * WIDTH
    weight_row = weight + (expert * ROWS + column.to(tl.int64)[:, None]) * WIDTH
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
    place = choice.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present & (column < ROWS)[None, :])


@triton.jit(
    do_not_specialize=["choices", "first_column", "out_columns", "shared_by", "units", "groups"]
)
def experts_affine_kernel(
    out,
    x,
    x_scale,
    q,
    scale,
    minimum,
    order,
    tile_expert,
    tiles,
    choices,
    first_column,
    out_columns,
    shared_by,
    units,
    groups,
    UNIT: tl.constexpr,
    BITS: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    HAS_MINIMUM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Compute a tile of products as `experts_kernel` does, with integer weights. Sums and sizes are
    as in `linear_affine_kernel`."""
    tile = tl.program_id(1)
    if tile >= tl.load(tiles):
        return
    rows, width = units * UNIT, groups * 32
    expert = tl.load(tile_expert + tile).to(tl.int64)
    choice = tl.load(order + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lane = tl.arange(0, 32)
    present, inside = choice < choices, column < rows
    source = (choice // shared_by).to(tl.int64)
    x_row = x + source[:, None] * width + lane[None, :]
    step_row = x_scale + source * groups
    q += expert * rows * (groups * (4 * BITS))
    factors = expert * rows * ((groups * 32 + GROUP - 1) // GROUP)
    scale += factors
    minimum += factors
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
            for half in tl.static_range(2):
                hidden = tl.where((lane // 16 == half)[None, :], left, 0).to(tl.int8)
                total = _add_group(
                    total, hidden, right, step, scale, minimum,
                    (2 * group + half) * rows + column, inside, OFFSET, HAS_MINIMUM,
                )  # fmt: skip
    place = choice.to(tl.int64)[:, None] * out_columns + first_column + column[None, :]
    tl.store(out + place, total, mask=present[:, None] & inside[None, :])


@triton.jit
def expert_activation_kernel(
    out, opened, bias, chosen,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr,
    WHICH: tl.constexpr,
):  # fmt: skip
    """Compute act(gate) * up or, unless GATED, act(up) for one (token, chosen expert) pair. BIASED:
    first add the expert's biases. WHICH: the index of act in `_ACTIVATIONS`. NaN stays NaN."""
    choice = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = opened + choice * (1 + GATED) * WIDTH + column
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    own = bias
    if BIASED:
        own = bias + tl.load(chosen + choice).to(tl.int64) * (1 + GATED) * WIDTH + column
        value += tl.load(own, mask=inside, other=0.0)
    factor = value * 0.0 + 1.0
    if GATED:
        factor = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
        if BIASED:
            factor += tl.load(own + WIDTH, mask=inside, other=0.0)
    slope = 1.0
    if WHICH == 1:
        # gelu_tanh is x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3).
        slope = 1.59576912161 + 0.07135481627 * value * value
    if WHICH == 3:
        value = tl.where(value > 7.0, 7.0, value)
        factor = tl.where(factor > 7.0, 7.0, tl.where(factor < -7.0, -7.0, factor)) + 1.0
        slope = 1.702
    if WHICH == 2:
        positive = tl.where(value < 0.0, 0.0, value)
        active = positive * positive
    else:
        active = value / (1.0 + tl.exp(-slope * value))
    tl.store(out + choice * WIDTH + column, active * factor, mask=inside)


@triton.jit
def combine_kernel(
    out, y, shares, bias, chosen,
    WIDTH: tl.constexpr, PER_TOKEN: tl.constexpr, BIASED: tl.constexpr, SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute a tile of one token's output: the sum of share * (y + bias) over its chosen experts,
    in the order of `chosen`. BIASED: experts have biases. SHARED: 0 if shares scaled the input, so
    that all shares here are 1."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for c in tl.static_range(PER_TOKEN):
        choice = token * PER_TOKEN + c
        share = tl.load(shares + choice).to(tl.float32)
        row = tl.load(y + choice * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        if BIASED:
            own = bias + tl.load(chosen + choice).to(tl.int64) * WIDTH + column
            row += tl.load(own, mask=inside, other=0.0)
        total += share * row if SHARED else row
    tl.store(out + token * WIDTH + column, total, mask=inside)


def experts(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: PackedExperts
) -> torch.Tensor:
    """See `Ops.experts`. All tensors are contiguous; every number in `chosen` is the index of an
    expert."""
    (tokens, width), per_token = x.shape, chosen.shape[1]
    rows = _rows_a_tile(x.device, chosen.numel(), weights)
    order = order_choices(chosen, weights.down.shape[0], rows)
    products = partial(_products, order, chosen.numel(), weights.invariant)
    read, shared_by = x, per_token
    if weights.shares_scale == "input":
        read, shared_by = (x[:, None] * shares[:, :, None]).to(x.dtype).view(-1, width), 1
    # Gates and ups are not held any longer than needed: they are the largest tensors of a step.
    inner = _activated(products(read, weights.gate_up, shared_by), chosen, weights)
    y = products(inner, (weights.down,), 1)
    out = torch.empty_like(x)
    bias = weights.down_bias
    launch(
        combine_kernel,
        (tokens, ceil_div(width, _COMBINED)),
        *(out, y, shares, out if bias is None else bias, chosen),
        WIDTH=width,
        PER_TOKEN=per_token,
        BIASED=int(bias is not None),
        SHARED=int(weights.shares_scale == "output"),
        BLOCK=_COMBINED,
    )
    return out


def _activated(opened: torch.Tensor, chosen: torch.Tensor, weights: PackedExperts) -> torch.Tensor:
    """Return act(gate) * up or act(up) [pairs, F] of the products `opened` [pairs, 2 F] or [pairs,
    F], with the experts' biases if they have any. A pair is a token with one of its chosen
    experts."""
    bias, width = weights.gate_up_bias, weights.down.shape[2]
    gated = opened.shape[1] > width
    if bias is None and gated and weights.activation == "silu":
        return silu_mul(opened)
    choices = opened.shape[0]
    out = opened.new_empty(choices, width)
    launch(
        expert_activation_kernel,
        (choices, ceil_div(width, _COMBINED)),
        *(out, opened, out if bias is None else bias, chosen),
        WIDTH=width,
        BLOCK=_COMBINED,
        GATED=int(gated),
        BIASED=int(bias is not None),
        WHICH=_ACTIVATIONS.index(weights.activation),
    )
    return out


def _rows_a_tile(device: torch.device, choices: int, weights: PackedExperts) -> int:
    """Return the rows of a tile. Tiles of 64 and 128 rows reuse the weights that were read, if
    experts have many rows; only dense bfloat16 weights have a kernel for 128. The kernel "float8"
    needs 64. Otherwise 16, the least that tensor cores need. `choices`: number of (token, chosen
    expert) pairs."""
    stacks, number = (*weights.gate_up, weights.down), weights.down.shape[0]
    many = not weights.invariant and choices >= 32 * number
    if many and choices >= _ROWS_OF_LARGE_TILES * number and all(map(_is_bfloat16, stacks)):
        return 128
    kinds = [
        choose_stack(stack, choices, device, weights.invariant)
        for stack in stacks
        if isinstance(stack, Float8Stack)
    ]
    return 64 if many or "float8" in kinds else 16


def _is_bfloat16(stack: Stack) -> bool:
    return isinstance(stack, DenseStack) and stack.data.dtype == torch.bfloat16


def _products(
    order: Order,
    choices: int,
    invariant: bool,
    x: torch.Tensor,
    stacks: tuple[Stack, ...],
    shared_by: int,
) -> torch.Tensor:
    """Return the products of all (token, chosen expert) pairs with the weights in `stacks`:
    [choices, N of all stacks]. `choices`: number of pairs. `shared_by`: number of successive pairs
    that read the same row of x."""
    out = x.new_empty(choices, sum(stack.shape[1] for stack in stacks))
    quantized = None
    first_column = 0
    for stack in stacks:
        extents = (choices, first_column, out.shape[1], shared_by)
        lists = (order.order, order.tile_expert, order.tiles, *extents)
        if isinstance(stack, AffineStack):
            quantized = quantized or quantize(x)
            _affine(out, quantized, stack, order, lists)
        elif isinstance(stack, Float8Stack):
            kind = choose_stack(stack, choices, x.device, invariant)
            float8_products(kind, out, x, stack, order, lists)
        else:
            _dense(out, x, stack, order, lists)
        first_column += stack.shape[1]
    return out


def _dense(out, x, stack: DenseStack, order: Order, lists) -> None:
    single = stack.data.dtype == torch.float32  # no tensor cores: small tiles
    many = order.rows > 16
    block_n = 64 if single or not many else 128
    block_k = 32 if single else 64 if many or stack.shape[2] % 128 else 128
    launch(
        experts_kernel,
        (ceil_div(stack.shape[1], block_n), order.capacity),
        *(out, x, stack.data, *lists),
        num_warps=4,
        num_stages=3 if many or single else 4,
        ROWS=stack.shape[1],
        WIDTH=stack.shape[2],
        UPCAST=int(BF16_IS_BROKEN and stack.data.dtype == torch.bfloat16),
        BLOCK_M=order.rows,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
    )


def _affine(out, quantized, stack: AffineStack, order: Order, lists) -> None:
    _, rows, width = stack.shape
    units, unit = in_units(rows)
    block_n = 64
    minimum = stack.scale if stack.minimum is None else stack.minimum
    zero_point = stack.zero_point if stack.minimum is None else 0
    launch(
        experts_affine_kernel,
        (ceil_div(rows, block_n), order.capacity),
        *(out, *quantized, stack.q, stack.scale, minimum, *lists),
        *(units, width // ACTIVATION_GROUP),
        UNIT=unit,
        BITS=stack.bits,
        GROUP=stack.group,
        OFFSET=(128 if stack.bits == 8 else 0) - zero_point,
        HAS_MINIMUM=int(stack.minimum is not None),
        BLOCK_M=order.rows,
        BLOCK_N=block_n,
    )


EXPERTS.register(Impl("triton", experts, why_not, pack_experts, invariant_kinds=("integer",)))
