"""Latent attention: all query heads share the keys of one KV head, and the first elements of a key
are its value, so that a program reads each key once.

Heads are divided into tiles of at most 64, or 32 on GPUs with little shared memory. Short chunks
are computed split-KV, as in `decode_attention`, whose lists of units and partial results serve here
too, with the tiles in place of KV heads (`tiled_heads`). A program for long chunks computes some
tokens for one tile of heads.
"""

from __future__ import annotations

import math

import torch

from penstock.kernels.gpu_kv_cache import ALIGNED_ELEMENTS, is_latent_cache
from penstock.kernels.latent_ops import LatentSizes
from penstock.kernels.ops.latent_attention import LATENT_ATTENTION
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.kernels.triton.compile.launch import BF16_IS_BROKEN, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.paged_attention.attention import _chunk_of
from penstock.kernels.triton.paged_attention.attention_tile import split_tokens
from penstock.kernels.triton.paged_attention.decode_attention import _add_parts
from penstock.kernels.triton.paged_attention.decode_work import work_of

_LEAST_ROWS = 16  # rows of a tensor-core tile
_MOST_HEADS = 64
_FEW_HEADS = 32
_SHARED_BYTES = 160 << 10  # shared memory that 64 heads need: 147 KiB for latents of 512
_PARTS_A_TILE = 16


def _most_heads(device: torch.device | str) -> int:
    """Return the most heads of a tile, whose queries and keys must fit the shared memory."""
    if torch.device(device).type != "cuda":
        return _MOST_HEADS
    shared = torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    return _MOST_HEADS if shared >= _SHARED_BYTES else _FEW_HEADS


def tiled_heads(sizes: LatentSizes, device: torch.device | str) -> tuple[int, int, int]:
    """Return (heads, tiles of heads, latent), the heads for which `AttentionWork` must be allocated
    for latent attention. The tiles are the fewest equal tiles that fit the device."""
    most = _most_heads(device)
    tiles = next(
        tiles
        for tiles in range(1, sizes.heads + 1)
        if sizes.heads % tiles == 0 and sizes.heads // tiles <= most
    )
    return sizes.heads, tiles, sizes.latent


def latent_decode_tokens(sizes: LatentSizes, device: torch.device | str) -> int:
    """Return the most tokens of a chunk that are computed split-KV."""
    heads, tiles, _ = tiled_heads(sizes, device)
    return max(_LEAST_ROWS, power_of_two(heads // tiles)) // (heads // tiles)


@triton.jit
def _queries(
    q, place, present, LATENT: tl.constexpr, ROTATED: tl.constexpr, LIKE: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Return the latent and the rotated part of the queries at element offsets `place` of q, in the
    type of the products: LIKE, or float32 if UPCAST."""
    dim, turn = tl.arange(0, BLOCK_C)[None, :], tl.arange(0, BLOCK_R)[None, :]
    source = q + place[:, None]
    mask = present[:, None]
    latent = tl.load(source + dim, mask=mask & (dim < LATENT), other=0.0)
    rotated = tl.load(source + LATENT + turn, mask=mask & (turn < ROTATED), other=0.0)
    if UPCAST:
        return latent.to(tl.float32), rotated.to(tl.float32)
    return latent.to(LIKE), rotated.to(LIKE)


@triton.jit
def _attend(
    query, rotated, top, mass, total, keys, table, key_stride, base, last, position, present,
    log2_scale,
    LATENT: tl.constexpr, ROTATED: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_R: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return (top, mass, total) of the online softmax after keys base .. base + BLOCK_N - 1; keys
    from `last` on do not exist. MASKED: mask the keys after `position`."""
    past = base + tl.arange(0, BLOCK_N)
    dim, turn = tl.arange(0, BLOCK_C)[None, :], tl.arange(0, BLOCK_R)[None, :]
    known = past < last
    block = tl.load(table + past // BLOCK_TOKENS, mask=known, other=0).to(tl.int64)
    row = block * key_stride * 16 + (past % BLOCK_TOKENS) * (LATENT + ROTATED)
    source, exists = keys + row[:, None], known[:, None]
    latent = tl.load(source + dim, mask=exists & (dim < LATENT), other=0.0).to(query.dtype)
    turned = tl.load(source + LATENT + turn, mask=exists & (turn < ROTATED), other=0.0)
    score = tl.dot(query, tl.trans(latent), input_precision="ieee")
    score = tl.dot(rotated, tl.trans(turned.to(query.dtype)), score, input_precision="ieee")
    score *= log2_scale
    if MASKED:
        seen = (past[None, :] <= position[:, None]) & known[None, :] & present[:, None]
        score = tl.where(seen, score, float("-inf"))
    peak = tl.maximum(top, tl.max(score, axis=1))
    # A row that has seen no key keeps -inf: use zero, for exp2(-inf - 0) = 0.
    level = tl.where(peak == float("-inf"), 0.0, peak)
    fade = tl.exp2(top - level)
    weight = tl.exp2(score - level[:, None])
    mass = mass * fade + tl.sum(weight, axis=1)
    total = tl.dot(weight.to(query.dtype), latent, total * fade[:, None], input_precision="ieee")
    return peak, mass, total


@triton.jit(do_not_specialize=["rows", "table_width", "key_stride", "log2_scale", "shorter"])
def latent_prefill_kernel(
    out,
    q,
    keys,
    starts,
    contexts,
    tables,
    rows,
    table_width,
    key_stride,
    log2_scale,
    shorter,
    HEADS: tl.constexpr,
    TILES: tl.constexpr,
    LATENT: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute attention for TOKENS tokens of a chunk of more than `shorter` tokens and one tile of
    heads."""
    SHARED: tl.constexpr = HEADS // TILES
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    row = _chunk_of(starts, tile, rows, TOKENS)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    first = start + (tile - (start // TOKENS + row)) * TOKENS
    context = tl.load(contexts + row)
    if (first < end) & (end - start > shorter) & (context > 0):
        lane, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_C)
        token = first + lane // SHARED
        present = (lane < TOKENS * SHARED) & (token < end)
        place = token.to(tl.int64) * HEADS + tl.program_id(1) * SHARED + lane % SHARED
        query, rotated = _queries(
            q, place * (LATENT + ROTATED), present,
            LATENT, ROTATED, keys.dtype.element_ty, UPCAST, BLOCK_C, BLOCK_R,
        )  # fmt: skip
        position = context - (end - token)
        # One past the last key that the first and the last token of the tile see.
        clear = context - (end - first) + 1
        last = context - (end - tl.minimum(first + TOKENS, end))
        full_to = clear // BLOCK_N * BLOCK_N
        table = tables + row.to(tl.int64) * table_width
        top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((BLOCK_M,), dtype=tl.float32)
        total = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
        for base in range(0, full_to, BLOCK_N):
            top, mass, total = _attend(
                query, rotated, top, mass, total, keys, table, key_stride, base, last, position,
                present, log2_scale,
                LATENT, ROTATED, BLOCK_TOKENS, BLOCK_N, BLOCK_C, BLOCK_R, False,
            )  # fmt: skip
        for base in range(full_to, last, BLOCK_N):
            top, mass, total = _attend(
                query, rotated, top, mass, total, keys, table, key_stride, base, last, position,
                present, log2_scale,
                LATENT, ROTATED, BLOCK_TOKENS, BLOCK_N, BLOCK_C, BLOCK_R, True,
            )  # fmt: skip
        result = total / tl.where(mass > 0, mass, 1.0)[:, None]
        mask = present[:, None] & (dim < LATENT)[None, :]
        tl.store(out + (place * LATENT)[:, None] + dim[None, :], result, mask=mask)


@triton.jit(do_not_specialize=["table_width", "key_stride", "log2_scale", "lanes", "split_size"])
def latent_decode_kernel(
    out,
    q,
    keys,
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
    log2_scale,
    lanes,
    split_size,
    HEADS: tl.constexpr,
    TILES: tl.constexpr,
    LATENT: tl.constexpr,
    ROTATED: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PARTS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Compute attention for the units of the list, for each tile of heads; the last program of a
    row and a tile combines its splits. See `decode_attention_kernel`, with TILES for K and LATENT
    for D."""
    SHARED: tl.constexpr = HEADS // TILES
    lane, dim = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_C)
    items = tl.load(unit_count) * TILES
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        which_tile = item % TILES
        row = tl.load(units + item // TILES * 2)
        split = tl.load(units + item // TILES * 2 + 1)
        start, end = tl.load(starts + row), tl.load(starts + row + 1)
        context = tl.load(contexts + row)
        size = split_tokens(context, split_size)
        count = tl.cdiv(context, size)
        token = start + lane // SHARED
        present = (lane < lanes) & (token < end)
        place = token.to(tl.int64) * HEADS + which_tile * SHARED + lane % SHARED
        query, rotated = _queries(
            q, place * (LATENT + ROTATED), present,
            LATENT, ROTATED, keys.dtype.element_ty, UPCAST, BLOCK_C, BLOCK_R,
        )  # fmt: skip
        position = context - (end - token)
        last = tl.minimum((split + 1) * size, context)
        table = tables + row.to(tl.int64) * table_width
        top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
        mass = tl.zeros((BLOCK_M,), dtype=tl.float32)
        total = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
        for base in range(split * size, last, BLOCK_N):
            top, mass, total = _attend(
                query, rotated, top, mass, total, keys, table, key_stride, base, last, position,
                present, log2_scale,
                LATENT, ROTATED, BLOCK_TOKENS, BLOCK_N, BLOCK_C, BLOCK_R, True,
            )  # fmt: skip
        mask = present[:, None] & (dim < LATENT)[None, :]
        if count == 1:
            result = total / tl.where(mass > 0, mass, 1.0)[:, None]
            tl.store(out + (place * LATENT)[:, None] + dim[None, :], result, mask=mask)
        else:
            part = lane.to(tl.int64) + item * lanes
            tl.store(parts + (part * LATENT)[:, None] + dim[None, :], total, mask=mask)
            tl.store(stats + 2 * part, top, mask=present)
            tl.store(stats + 2 * part + 1, mass, mask=present)
            tl.debug_barrier()  # every thread has written its part before one of them signals it
            before = tl.atomic_add(arrived + row * TILES + which_tile, 1, sem="acq_rel")
            if before == count - 1:
                tl.debug_barrier()
                # The units of a row are neighbours, in the order of its splits.
                first = (item - split.to(tl.int64) * TILES) * lanes
                for which in range(0, (end - start) * SHARED):
                    result = _add_parts(
                        parts, stats, first, count, TILES * lanes, which, LATENT, BLOCK_C, PARTS
                    )
                    whose = (start + which // SHARED).to(tl.int64) * HEADS
                    whose += which_tile * SHARED + which % SHARED
                    tl.store(out + whose * LATENT + dim, result, mask=dim < LATENT)
                tl.atomic_xchg(arrived + row * TILES + which_tile, 0)


def _decode(out, q, inputs, cache, sizes: LatentSizes, scale: float, tokens: int, extents) -> None:
    """Compute chunks of at most `tokens` tokens."""
    tiled = tiled_heads(sizes, q.device)
    shared = tiled[0] // tiled[1]
    work = work_of(inputs, tiled, 0, tokens, cache.values.shape[2])
    launch(
        latent_decode_kernel,
        (2 * work.multiprocessors,),
        *(out, q, cache.keys, inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(work.units, work.count, work.parts, work.stats, work.arrived),
        *(inputs.block_tables.shape[1], cache.keys.stride(0) // ALIGNED_ELEMENTS),
        *(scale / math.log(2), tokens * shared, work.split),
        num_warps=4 if shared <= _LEAST_ROWS else 8,
        num_stages=2,
        BLOCK_M=max(_LEAST_ROWS, power_of_two(shared)),
        PARTS=_PARTS_A_TILE,
        **extents,
    )


def _prefill(out, q, inputs, cache, sizes: LatentSizes, scale: float, longer: int, extents) -> None:
    """Compute chunks of more than `longer` tokens."""
    heads, tiles, _ = tiled_heads(sizes, q.device)
    shared, rows = heads // tiles, inputs.context_lens.shape[0]
    least = _LEAST_ROWS if cache.keys.dtype == torch.float32 else _most_heads(q.device)
    block_m = max(least, power_of_two(shared))
    tile_tokens = block_m // shared
    launch(
        latent_prefill_kernel,
        (q.shape[0] // tile_tokens + rows, tiles),
        *(out, q, cache.keys, inputs.query_starts, inputs.context_lens, inputs.block_tables),
        *(rows, inputs.block_tables.shape[1], cache.keys.stride(0) // ALIGNED_ELEMENTS),
        *(scale / math.log(2), longer),
        num_warps=8,
        num_stages=2,
        TOKENS=tile_tokens,
        BLOCK_M=block_m,
        **extents,
    )


def latent_attention(
    q: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    cache: LayerCache[torch.Tensor],
    sizes: LatentSizes,
    scale: float,
) -> torch.Tensor:
    """See `Ops.latent_attention`. `q` and the block tables are contiguous."""
    assert is_latent_cache(cache), "the cache must have the layout of kernels.gpu_kv_cache"
    heads, tiles, latent = tiled_heads(sizes, q.device)
    out = q.new_empty(q.shape[0], heads * latent)
    few = cache.keys.dtype == torch.float32 or _most_heads(q.device) == _FEW_HEADS
    extents = {
        "HEADS": heads,
        "TILES": tiles,
        "LATENT": latent,
        "ROTATED": sizes.rotated,
        "BLOCK_TOKENS": cache.values.shape[2],
        "BLOCK_N": 16 if few else 32,
        "BLOCK_C": max(_LEAST_ROWS, power_of_two(latent)),
        "BLOCK_R": max(_LEAST_ROWS, power_of_two(sizes.rotated)),
        "UPCAST": int(BF16_IS_BROKEN and torch.bfloat16 in (q.dtype, cache.keys.dtype)),
    }
    one_token = q.shape[0] == inputs.context_lens.shape[0]
    most = latent_decode_tokens(sizes, q.device)
    _decode(out, q, inputs, cache, sizes, scale, 1 if one_token else most, extents)
    if not one_token:
        _prefill(out, q, inputs, cache, sizes, scale, most, extents)
    return out


LATENT_ATTENTION.register(Impl("triton", latent_attention, why_not))
