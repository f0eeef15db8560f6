"""Paged attention for steps with any mix of chunks: `decode_attention` computes short chunks, the
kernel here long chunks.

A program computes a tile of one chunk's tokens for one KV head; the query heads that share the KV
head are packed into the rows of the tile. The grid is sized by capacity: the tiles of chunk r start
at index starts[r] // TOKENS + r, which leaves room for the partial last tile of every chunk; a
program finds its chunk by bisection. Tiles at the end of a chunk see the most keys and start first.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from penstock.kernels.gpu_kv_cache import ALIGNED_ELEMENTS, is_token_major
from penstock.kernels.ops.attention import ATTENTION, BIDIRECTIONAL_ATTENTION, ROUNDED_ATTENTION
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.triton.compile.launch import BF16_IS_BROKEN, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.paged_attention.attention_tile import (
    attend,
    begin_softmax,
    limit_visible,
    load_queries,
    oldest_seen,
)
from penstock.kernels.triton.paged_attention.decode_attention import (
    decode_attention,
    decode_tokens,
    visible_of,
)


@triton.jit
def _chunk_of(starts, tile, rows, TOKENS: tl.constexpr):
    """Return the last chunk whose first tile is at or before `tile`."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= tile:
            low = middle
        else:
            high = middle
    return low


@triton.jit(
    do_not_specialize=[
        "rows", "table_width", "key_stride", "value_stride", "log2_scale", "window", "shorter",
        "farthest", "cap",
    ]
)  # fmt: skip
def attention_kernel(
    out,
    q,
    keys,
    values,
    key_scales,
    value_scales,
    bias,
    sinks,
    visible,
    starts,
    contexts,
    tables,
    rows,
    table_width,
    key_stride,
    value_stride,
    log2_scale,
    window,
    shorter,
    farthest,
    cap,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BOTH: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    SINKS: tl.constexpr,
    VISIBLE: tl.constexpr,
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute attention for one tile of a chunk of more than `shorter` tokens. BOTH: a token also
    sees later tokens. BIASED: scores get a bias by distance; distances beyond `farthest` have the
    bias of `farthest`. SINKS: each head has a sink, a score without a value. VISIBLE: a token sees
    the keys before `visible` [T], see `limit_visible`. CAPPED: scores are limited by `cap`."""
    SHARED: tl.constexpr = Q_HEADS // KV_HEADS
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1)
    row = _chunk_of(starts, tile, rows, TOKENS)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    first = start + (tile - (start // TOKENS + row)) * TOKENS
    context = tl.load(contexts + row)
    if (first < end) & (end - start > shorter) & (context > 0):
        lane, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        token = first + lane // SHARED
        present = (lane < TOKENS * SHARED) & (token < end)
        head = kv_head * SHARED + lane % SHARED
        place = (token.to(tl.int64) * Q_HEADS + head) * DIM
        like = q.dtype.element_ty if SCALED else keys.dtype.element_ty
        query = load_queries(q, place, present, dim, DIM, like, UPCAST)
        if SCALED:
            log2_scale *= tl.load(key_scales + kv_head)
        position = context - (end - token)
        # One past the last key that the first and the last token of the tile see.
        clear = context - (end - first) + 1
        last = context - (end - tl.minimum(first + TOKENS, end))
        reach = position
        if BOTH:
            clear = tl.where(window > 0, tl.minimum(clear + window - 1, context), context)
            last = tl.where(window > 0, tl.minimum(last + window - 1, context), context)
            reach = tl.where(window > 0, position + window - 1, context)
        oldest = oldest_seen(context - (end - first), window)
        if VISIBLE:
            position, reach = limit_visible(visible, start, token, present, position, window)
            clear = tl.load(visible + first)
            last = tl.load(visible + tl.minimum(first + TOKENS, end) - 1)
            oldest = oldest_seen(tl.min(tl.where(present, position, context), axis=0), window)
        # Keys at the far end of a window are masked for later tokens of the tile.
        shown = oldest_seen(last, window)
        begin = oldest // BLOCK_N * BLOCK_N
        full_from = tl.minimum(tl.cdiv(shown, BLOCK_N) * BLOCK_N, last)
        full_to = tl.maximum(clear // BLOCK_N * BLOCK_N, full_from)
        table = tables + row.to(tl.int64) * table_width
        biases = bias + head * (2 * farthest + 1) + farthest
        top, mass = begin_softmax(sinks, head, present, True, SINKS, BLOCK_M)
        total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
        for base in range(begin, full_from, BLOCK_N):
            top, mass, total = attend(
                query, top, mass, total, keys, values, table, key_stride, value_stride, kv_head,
                base, last, position, reach, present, log2_scale, window, biases, farthest, cap,
                DIM, BLOCK_TOKENS, BLOCK_N, BLOCK_D, True, BIASED, CAPPED,
            )  # fmt: skip
        for base in range(full_from, full_to, BLOCK_N):
            top, mass, total = attend(
                query, top, mass, total, keys, values, table, key_stride, value_stride, kv_head,
                base, last, position, reach, present, log2_scale, window, biases, farthest, cap,
                DIM, BLOCK_TOKENS, BLOCK_N, BLOCK_D, False, BIASED, CAPPED,
            )  # fmt: skip
        for base in range(full_to, last, BLOCK_N):
            top, mass, total = attend(
                query, top, mass, total, keys, values, table, key_stride, value_stride, kv_head,
                base, last, position, reach, present, log2_scale, window, biases, farthest, cap,
                DIM, BLOCK_TOKENS, BLOCK_N, BLOCK_D, True, BIASED, CAPPED,
            )  # fmt: skip
        result = total / tl.where(mass > 0, mass, 1.0)[:, None]
        if SCALED:
            result *= tl.load(value_scales + kv_head)
        mask = present[:, None] & (dim < DIM)[None, :]
        tl.store(out + place[:, None] + dim[None, :], result, mask=mask)


def prefill_attention(
    out,
    q,
    inputs,
    cache,
    heads,
    scale,
    window,
    shorter: int,
    both: int = 0,
    bias=None,
    sinks=None,
    softcap: float = 0.0,
) -> None:
    """Compute attention for chunks of more than `shorter` tokens and write the results to these
    tokens of `out`. `both`: 1 if tokens also see later tokens."""
    q_heads, kv_heads, dim = heads
    shared = q_heads // kv_heads
    tokens, rows = q.shape[0], inputs.context_lens.shape[0]
    scaled = cache.key_scales is not None
    visible = visible_of(inputs, sinks)
    if (q if scaled else cache.keys).dtype == torch.float32:
        # Without tensor cores, larger tiles would need too many registers.
        block_m, warps = max(16, power_of_two(shared)), 8
        block_n = max(16, 512 // block_m)
    else:
        block_m = max(64 if tokens < 64 * rows or dim > 128 else 128, power_of_two(shared))
        block_n = 64 if dim <= 128 else 32
        warps = 4 if block_m == 64 and dim <= 128 else 8
    tile_tokens = block_m // shared
    launch(
        attention_kernel,
        (tokens // tile_tokens + rows, kv_heads),
        *(out, q, cache.keys, cache.values),
        *((cache.key_scales, cache.value_scales) if scaled else (out, out)),
        out if bias is None else bias,
        out if sinks is None else sinks,
        out if visible is None else visible,
        *(inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(rows, inputs.block_tables.shape[1]),
        *(part.stride(0) // ALIGNED_ELEMENTS for part in (cache.keys, cache.values)),
        *(scale / math.log(2), window, shorter, 0 if bias is None else bias.shape[1] // 2),
        softcap / math.log(2),
        num_warps=warps,
        num_stages=2,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_TOKENS=cache.values.shape[2],
        TOKENS=tile_tokens,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_D=power_of_two(dim),
        BOTH=both,
        SCALED=int(scaled),
        BIASED=int(bias is not None),
        SINKS=int(sinks is not None),
        VISIBLE=int(visible is not None),
        CAPPED=int(softcap > 0),
        UPCAST=int(BF16_IS_BROKEN and torch.bfloat16 in (q.dtype, cache.keys.dtype)),
    )


def attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    decode: Callable[..., None] = decode_attention,
    prompt: Callable[..., None] = prefill_attention,
) -> torch.Tensor:
    """See `Ops.attention`.

    `q`, the block tables and `sinks` are contiguous; the cache has the layout of
    `kernels.gpu_kv_cache`. `decode` computes short chunks, `prompt` all longer chunks. If a step
    has as many tokens as rows, no row has more than one token, and `prompt` is not called.
    """
    assert is_token_major(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    out = q.new_empty(*q.shape)  # cheaper than empty_like
    further = {"sinks": sinks, "softcap": softcap}
    decode(out, q, inputs, cache, heads, scale, window, **further)
    if q.shape[0] != inputs.context_lens.shape[0]:
        longer_than = decode_tokens(heads)
        prompt(out, q, inputs, cache, heads, scale, window, longer_than, **further)
    return out


def bidirectional_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """See `Ops.bidirectional_attention`. Layouts are as in `attention`; `bias` is contiguous."""
    assert is_token_major(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    out = torch.empty_like(q)
    prefill_attention(out, q, inputs, cache, heads, scale, window, 0, both=1, bias=bias)
    return out


ATTENTION.register(Impl("triton", attention, why_not))
BIDIRECTIONAL_ATTENTION.register(Impl("triton", bidirectional_attention, why_not))
ROUNDED_ATTENTION.register(Impl("triton", bidirectional_attention, why_not))
