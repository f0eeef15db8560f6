"""Paged attention with an online softmax (arXiv 2205.14135), for any mix of chunks.

A program owns a tile of one chunk's tokens and one KV head; the query heads that share the KV head
are packed into the rows of the tile, so that a decoded token fills a tensor-core tile by itself.
The grid is sized by capacity: chunk r may start at tile starts[r] // TOKENS + r at the earliest,
which leaves room for every chunk's last, partial tile; a program finds its chunk by bisection.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import triton
import triton.language as tl

from penstock.kernels.op import Impl
from penstock.kernels.ops.attention import ATTENTION, BIDIRECTIONAL_ATTENTION
from penstock.kernels.table import LayerCache, StepInputs
from penstock.kernels.triton.launch import launch, power_of_two, why_not

_KEYS_A_TILE = 64


@triton.jit
def _chunk_of(starts, tile, rows, TOKENS: tl.constexpr):
    """The last chunk whose first tile is not after `tile`."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["rows", "table_width", "log2_scale", "window"])
def attention_kernel(
    out,
    q,
    keys,
    values,
    starts,
    contexts,
    tables,
    rows,
    table_width,
    log2_scale,
    window,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BOTH: tl.constexpr,
):
    """BOTH: a token also sees the tokens after it."""
    SHARED: tl.constexpr = Q_HEADS // KV_HEADS
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = _chunk_of(starts, tile, rows, TOKENS)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    first = start + (tile - (start // TOKENS + row)) * TOKENS
    if first < end:
        context = tl.load(contexts + row)
        lane, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        token = first + lane // SHARED
        present = (lane < TOKENS * SHARED) & (token < end)
        head = kv_head * SHARED + lane % SHARED
        place = (token.to(tl.int64) * Q_HEADS + head) * DIM
        q_mask = present[:, None] & (dim < DIM)[None, :]
        query = tl.load(q + place[:, None] + dim[None, :], mask=q_mask, other=0.0)
        query = query.to(keys.dtype.element_ty)
        position = context - (end - token)
        last = context - (end - tl.minimum(first + TOKENS, end))
        if BOTH:
            last = tl.where(window > 0, tl.minimum(last + window - 1, context), context)
        oldest = tl.where(window > 0, tl.maximum(context - (end - first) - window + 1, 0), 0)
        top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((BLOCK_M,), dtype=tl.float32)
        total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
        for base in range(oldest // BLOCK_N * BLOCK_N, last, BLOCK_N):
            past = base + tl.arange(0, BLOCK_N)
            known = past < last
            block = tl.load(
                tables + row.to(tl.int64) * table_width + past // BLOCK_TOKENS, mask=known, other=0
            )
            panel = block.to(tl.int64) * KV_HEADS + kv_head
            offset = past % BLOCK_TOKENS
            key_place = panel[None, :] * DIM * BLOCK_TOKENS + dim[:, None] * BLOCK_TOKENS
            key_mask = (dim < DIM)[:, None] & known[None, :]
            key = tl.load(keys + key_place + offset[None, :], mask=key_mask, other=0.0)
            score = tl.dot(query, key, input_precision="ieee") * log2_scale
            reach = position
            if BOTH:
                reach = tl.where(window > 0, position + window - 1, context)
            seen = (past[None, :] <= reach[:, None]) & known[None, :] & present[:, None]
            seen &= (window == 0) | (past[None, :] > position[:, None] - window)
            score = tl.where(seen, score, float("-inf"))
            peak = tl.maximum(top, tl.max(score, axis=1))
            # A row that has seen nothing yet keeps -inf: zero stands in, for exp2(-inf - 0) = 0.
            level = tl.where(peak == float("-inf"), 0.0, peak)
            fade = tl.exp2(top - level)
            weight = tl.exp2(score - level[:, None])
            mass = mass * fade + tl.sum(weight, axis=1)
            value_place = (panel * BLOCK_TOKENS + offset)[:, None] * DIM + dim[None, :]
            value_mask = known[:, None] & (dim < DIM)[None, :]
            value = tl.load(values + value_place, mask=value_mask, other=0.0)
            total = total * fade[:, None]
            total = tl.dot(weight.to(value.dtype), value, total, input_precision="ieee")
            top = peak
        result = total / tl.where(mass > 0, mass, 1.0)[:, None]
        tl.store(out + place[:, None] + dim[None, :], result, mask=q_mask)


def _attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    both: int,
) -> torch.Tensor:
    """`q`, the block tables and the cache are contiguous."""
    q_heads, kv_heads, dim = heads
    shared = q_heads // kv_heads
    tokens, rows = len(q), len(inputs.context_lens)
    block_m = max(16 if tokens == rows else 64, power_of_two(shared))
    tile_tokens = block_m // shared
    out = torch.empty_like(q)
    launch(
        attention_kernel,
        (tokens // tile_tokens + rows, kv_heads),
        *(out, q, cache.keys, cache.values),
        *(inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(rows, inputs.block_tables.shape[1], scale / math.log(2), window),
        num_warps=4 if dim <= 128 else 8,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_TOKENS=cache.keys.shape[3],
        TOKENS=tile_tokens,
        BLOCK_M=block_m,
        BLOCK_N=_KEYS_A_TILE if dim <= 128 else _KEYS_A_TILE // 2,
        BLOCK_D=power_of_two(dim),
        BOTH=both,
    )
    return out


ATTENTION.register(Impl("triton", partial(_attention, both=0), why_not))
BIDIRECTIONAL_ATTENTION.register(Impl("triton", partial(_attention, both=1), why_not))
