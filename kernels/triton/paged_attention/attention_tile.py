"""Functions that the attention kernels share: loading queries, and one step of the online softmax
(arXiv 2205.14135) over a tile of keys and values that is read through the block table."""

from __future__ import annotations

from penstock.kernels.triton.language import tl, triton


@triton.jit
def split_tokens(context, least):
    """Return the keys per split for a sequence of `context` keys: `least`, doubled until the
    context fits into 64 splits (16 while a split has fewer than 256 keys). The size depends only on
    the sequence, so that its sums do not depend on the batch."""
    size = least + context * 0
    for _ in tl.static_range(18):
        most = size * tl.where(size < 256, 16, 64)
        size = tl.where(context > most, 2 * size, size)
    return size


@triton.jit
def load_queries(q, place, mask, dim, DIM: tl.constexpr, LIKE: tl.constexpr, UPCAST: tl.constexpr):
    """Return the queries [rows, D] at element offsets `place` of q, in the type of the products:
    LIKE, or float32 if UPCAST."""
    query = tl.load(q + place[:, None] + dim[None, :], mask=mask[:, None] & (dim < DIM)[None, :],
                    other=0.0)  # fmt: skip
    return query.to(tl.float32) if UPCAST else query.to(LIKE)


@triton.jit
def begin_softmax(sinks, head, present, is_first, SINKS: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return (top, mass), highest score and sum of weights [rows], before any key. SINKS: rows with
    `is_first` start with the sink of their head as a score; only one split of a query may do so."""
    top = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    mass = tl.zeros((BLOCK_M,), dtype=tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=present, other=0.0).to(tl.float32)
        top = tl.where(is_first, sink * 1.4426950408889634, top)
        mass = tl.where(is_first, mass + 1.0, mass)
    return top, mass


@triton.jit
def oldest_seen(position, window):
    """Return the first key that a query at `position` sees: with a window of w keys, w - 1 before
    it; with a negative window -c, the first of its chunk of c keys; with 0, the first of all."""
    chunk = tl.maximum(-window, 1)
    first = tl.where(window < 0, position // chunk * chunk, 0)
    return tl.where(window > 0, tl.maximum(position - window + 1, 0), first)


@triton.jit
def limit_visible(visible, start, token, present, position, window):
    """Return (position, reach) [rows] for tokens that see the keys before `visible` [T]: the last
    key that each sees, and the position from which its window counts. A window is widened to the
    first token of the chunk, which starts at token `start`, with the same number."""
    end = tl.load(visible + token, mask=present, other=0)
    if window > 0:
        low, high = start + token * 0, token
        for _ in range(24):  # bisection: a step has fewer than 2^24 tokens
            middle = (low + high) // 2
            before = tl.load(visible + middle, mask=present & (low < high), other=0) < end
            high = tl.where(before, high, middle)
            low = tl.where(before & (low < high), middle + 1, low)
        position = tl.minimum(position, position - (token - low) + window - 1)
    return position, end - 1


@triton.jit
def attend(
    query,
    top,
    mass,
    total,
    keys,
    values,
    table,
    key_stride,
    value_stride,
    kv_head,
    base,
    last,
    position,
    reach,
    present,
    log2_scale,
    window,
    biases,
    farthest,
    cap,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
    BIASED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """Return (top, mass, total) of the online softmax after keys base .. base + BLOCK_N - 1; keys
    from `last` on do not exist.

    `key_stride`, `value_stride`: distance of KV blocks in units of 16 elements, so that the
    compiler knows that loads are aligned.
    `position`, `reach`: position of each query, and the last position that it sees.
    MASKED: mask the keys that a query does not see; otherwise every query sees all of them.
    BIASED: add a bias by distance. `biases` [rows] point to the bias of distance 0; the biases of
    distances -farthest to farthest surround it.
    CAPPED: a score s, in units of log2, becomes cap * tanh(s / cap).
    """
    past = base + tl.arange(0, BLOCK_N)
    dim = tl.arange(0, BLOCK_D)
    known = past < last
    inside = (dim < DIM)[None, :]
    if MASKED:
        block = tl.load(table + past // BLOCK_TOKENS, mask=known, other=0).to(tl.int64)
        inside &= known[:, None]
    else:
        block = tl.load(table + past // BLOCK_TOKENS).to(tl.int64)
    row = kv_head * (BLOCK_TOKENS * DIM) + (past % BLOCK_TOKENS) * DIM
    key_place = (block * key_stride * 16 + row)[:, None] + dim[None, :]
    key = tl.load(keys + key_place, mask=inside, other=0.0).to(query.dtype)
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * log2_scale
    if CAPPED:
        score = cap - 2.0 * cap / (1.0 + tl.exp(score * (2.0 / cap)))
    if BIASED:
        away = tl.minimum(tl.maximum(past[None, :] - position[:, None], -farthest), farthest)
        own = tl.load(biases[:, None] + away, mask=present[:, None], other=0.0)
        score += own.to(tl.float32) * 1.4426950408889634
    if MASKED:
        seen = (past[None, :] <= reach[:, None]) & known[None, :] & present[:, None]
        seen &= past[None, :] >= oldest_seen(position, window)[:, None]
        score = tl.where(seen, score, float("-inf"))
    peak = tl.maximum(top, tl.max(score, axis=1))
    # A row that has seen no key keeps -inf: use zero, for exp2(-inf - 0) = 0.
    level = tl.where(peak == float("-inf"), 0.0, peak)
    fade = tl.exp2(top - level)
    weight = tl.exp2(score - level[:, None])
    mass = mass * fade + tl.sum(weight, axis=1)
    value_place = (block * value_stride * 16 + row)[:, None] + dim[None, :]
    value = tl.load(values + value_place, mask=inside, other=0.0).to(query.dtype)
    total = tl.dot(weight.to(query.dtype), value, total * fade[:, None], input_precision="ieee")
    return peak, mass, total
