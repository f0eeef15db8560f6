"""Attention of short chunks (one token, or the few tokens of speculative decoding) over long
contexts: split-KV.

The keys of a sequence are divided into splits, whose size depends only on the sequence's length. A
persistent grid walks a list of (row, split) units that `decode_work` built on the device, so that a
captured graph serves every mix of lengths. The query heads that share a KV head, for all tokens of
the chunk, are the rows of one tile. The program that finishes the last split of a row adds up the
row's partial results in the order of the keys: sums depend neither on the batch nor on which
program was last.
"""

from __future__ import annotations

import math

import torch

from penstock.kernels.gpu_kv_cache import ALIGNED_ELEMENTS
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.triton.compile.launch import BF16_IS_BROKEN, launch, power_of_two
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.paged_attention.attention_tile import (
    attend,
    begin_softmax,
    limit_visible,
    load_queries,
    oldest_seen,
    split_tokens,
)
from penstock.kernels.triton.paged_attention.decode_work import AttentionWork, work_of

_LEAST_ROWS = 16  # rows of a tensor-core tile
_PARTS_A_TILE = 16
_PROGRAMS_AN_SM = 3  # limited by registers


def decode_tokens(heads: tuple[int, int, int]) -> int:
    """Return the most tokens of a chunk that `decode_attention` computes."""
    shared = heads[0] // heads[1]
    return max(_LEAST_ROWS, power_of_two(shared)) // shared


@triton.jit
def _add_parts(
    parts, stats, first, count, stride, lane, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """Return the output [D] of query `lane`, combined from the partial results of `count` splits.
    Part i is at index first + i * stride + lane of `parts` and `stats`."""
    dim = tl.arange(0, BLOCK_D)
    top = tl.full((), float("-inf"), dtype=tl.float32)
    mass = tl.full((), 0.0, dtype=tl.float32)
    total = tl.zeros((BLOCK_D,), dtype=tl.float32)
    for base in range(0, count, PARTS):
        index = base + tl.arange(0, PARTS)
        known = index < count
        place = first + index.to(tl.int64) * stride + lane
        tops = tl.load(stats + 2 * place, mask=known, other=float("-inf"))
        masses = tl.load(stats + 2 * place + 1, mask=known, other=0.0)
        peak = tl.maximum(top, tl.max(tops, axis=0))
        level = tl.where(peak == float("-inf"), 0.0, peak)
        fade, share = tl.exp2(top - level), tl.exp2(tops - level)
        inside = known[:, None] & (dim < DIM)[None, :]
        part = tl.load(parts + (place * DIM)[:, None] + dim[None, :], mask=inside, other=0.0)
        total = total * fade + tl.sum(part * share[:, None], axis=0)
        mass = mass * fade + tl.sum(masses * share, axis=0)
        top = peak
    return total / tl.where(mass > 0, mass, 1.0)


@triton.jit(
    do_not_specialize=[
        "table_width",
        "key_stride",
        "value_stride",
        "log2_scale",
        "window",
        "lanes",
        "split_size",
        "cap",
    ]
)
def decode_attention_kernel(
    out,
    q,
    keys,
    values,
    key_scales,
    value_scales,
    sinks,
    visible,
    starts,
    contexts,
    tables,
    units,
    unit_count,
    parts,
    stats,
    arrived,
    table_width,
    key_stride,
    value_stride,
    log2_scale,
    window,
    lanes,
    split_size,
    cap,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PARTS: tl.constexpr,
    SCALED: tl.constexpr,
    SINKS: tl.constexpr,
    VISIBLE: tl.constexpr,
    CAPPED: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute attention for the units of the list; the last program of a row combines its splits.

    `parts: [units, K, lanes, D]`: float32 partial results of rows with several splits.
    `stats: [units, K, lanes, 2]`: float32 highest score and sum of weights of each part.
    `arrived: [R, K]`: int32 number of finished splits, zero before and after the launch.
    SINKS: each head has a sink, which is counted in the first split of a row.
    VISIBLE: a token sees the keys before `visible` [T], see `limit_visible`.
    CAPPED: scores are limited by `cap`.
    """
    SHARED: tl.constexpr = Q_HEADS // KV_HEADS
    lane, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    items = tl.load(unit_count) * KV_HEADS
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        kv_head = item % KV_HEADS
        row = tl.load(units + item // KV_HEADS * 2)
        split = tl.load(units + item // KV_HEADS * 2 + 1)
        start, end = tl.load(starts + row), tl.load(starts + row + 1)
        context = tl.load(contexts + row)
        size = split_tokens(context, split_size)
        oldest = oldest_seen(context - (end - start), window)
        count = tl.cdiv(context, size) - oldest // size
        token = start + lane // SHARED
        present = (lane < lanes) & (token < end)
        head = kv_head * SHARED + lane % SHARED
        place = (token.to(tl.int64) * Q_HEADS + head) * DIM
        like = q.dtype.element_ty if SCALED else keys.dtype.element_ty
        query = load_queries(q, place, present, dim, DIM, like, UPCAST)
        scale = log2_scale
        if SCALED:
            scale *= tl.load(key_scales + kv_head)
        position = context - (end - token)
        reach = position
        if VISIBLE:
            position, reach = limit_visible(visible, start, token, present, position, window)
        last = tl.minimum((split + 1) * size, context)
        begin = tl.maximum(split * size, oldest // BLOCK_N * BLOCK_N)
        table = tables + row.to(tl.int64) * table_width
        is_first = split == oldest // size
        top, mass = begin_softmax(sinks, head, present, is_first, SINKS, BLOCK_M)
        total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
        for base in range(begin, last, BLOCK_N):
            top, mass, total = attend(
                query, top, mass, total, keys, values, table, key_stride, value_stride, kv_head,
                base, last, position, reach, present, scale, window, 0, 0, cap,
                DIM, BLOCK_TOKENS, BLOCK_N, BLOCK_D, True, False, CAPPED,
            )  # fmt: skip
        if SCALED:
            total *= tl.load(value_scales + kv_head)
        mask = present[:, None] & (dim < DIM)[None, :]
        if count == 1:
            result = total / tl.where(mass > 0, mass, 1.0)[:, None]
            tl.store(out + place[:, None] + dim[None, :], result, mask=mask)
        else:
            part = lane.to(tl.int64) + item * lanes
            tl.store(parts + (part * DIM)[:, None] + dim[None, :], total, mask=mask)
            tl.store(stats + 2 * part, top, mask=present)
            tl.store(stats + 2 * part + 1, mass, mask=present)
            tl.debug_barrier()  # every thread has written its part before one of them signals it
            before = tl.atomic_add(arrived + row * KV_HEADS + kv_head, 1, sem="acq_rel")
            if before == count - 1:
                tl.debug_barrier()
                # The units of a row are neighbours, in the order of its splits.
                earlier = (split - oldest // size).to(tl.int64) * KV_HEADS
                first = (item - earlier) * lanes
                for which in range(0, (end - start) * SHARED):
                    result = _add_parts(
                        parts, stats, first, count, KV_HEADS * lanes, which, DIM, BLOCK_D, PARTS
                    )
                    whose = (start + which // SHARED).to(tl.int64) * Q_HEADS
                    whose += kv_head * SHARED + which % SHARED
                    tl.store(out + whose * DIM + dim, result, mask=dim < DIM)
                tl.atomic_xchg(arrived + row * KV_HEADS + kv_head, 0)


def visible_of(inputs: StepInputs[torch.Tensor], sinks: torch.Tensor | None) -> torch.Tensor | None:
    """Return `inputs.media.visible`, or None. Raises ValueError if there are sinks too."""
    visible = None if inputs.media is None else inputs.media.visible
    if visible is not None and sinks is not None:
        raise ValueError("sinks: are not supported together with `visible`")
    return visible


def decode_attention(
    out: torch.Tensor,
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    heads: tuple[int, int, int],
    scale: float,
    window: int,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
) -> None:
    """Compute attention for chunks of at most `decode_tokens(heads)` tokens and write the results
    to these tokens of `out`."""
    q_heads, kv_heads, dim = heads
    shared = q_heads // kv_heads
    one_token = q.shape[0] == inputs.context_lens.shape[0]
    lanes = shared * (1 if one_token else decode_tokens(heads))
    work: AttentionWork = work_of(inputs, heads, window, lanes // shared, cache.values.shape[2])
    scaled = cache.key_scales is not None
    visible = visible_of(inputs, sinks)
    launch(
        decode_attention_kernel,
        (_PROGRAMS_AN_SM * work.multiprocessors,),
        *(out, q, cache.keys, cache.values),
        *((cache.key_scales, cache.value_scales) if scaled else (out, out)),
        out if sinks is None else sinks,
        out if visible is None else visible,
        *(inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(work.units, work.count, work.parts, work.stats, work.arrived),
        inputs.block_tables.shape[1],
        *(part.stride(0) // ALIGNED_ELEMENTS for part in (cache.keys, cache.values)),
        *(scale / math.log(2), window, lanes, work.split, softcap / math.log(2)),
        num_warps=4,
        num_stages=3 if dim <= 128 else 2,
        Q_HEADS=q_heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_TOKENS=cache.values.shape[2],
        BLOCK_M=max(_LEAST_ROWS, power_of_two(shared)),
        BLOCK_N=64 if dim <= 128 else 32,
        BLOCK_D=power_of_two(dim),
        PARTS=_PARTS_A_TILE,
        SCALED=int(scaled),
        SINKS=int(sinks is not None),
        VISIBLE=int(visible is not None),
        CAPPED=int(softcap > 0),
        UPCAST=int(BF16_IS_BROKEN and torch.bfloat16 in (q.dtype, cache.keys.dtype)),
    )
