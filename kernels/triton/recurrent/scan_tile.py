"""Functions of the scan over tiles: decays and products of a tile, and the matrices in which a
state is read and written.

Every sum has a fixed order, and a token has its own line of a tile in every division into chunks;
so a line has the same bits whether its neighbours belong to the chunk, are pending or are missing
(zeros).
"""

from __future__ import annotations

from penstock.kernels.triton.language import tl, triton


@triton.jit
def softplus(x):
    """Return log(1 + exp(x))."""
    y = tl.exp(-tl.abs(x))
    # A logarithm of 1 + y would lose the digits of a small y.
    small = y * (1.0 - y * (0.5 - y * 0.33333333))
    return tl.maximum(x, 0.0) + tl.where(y < 0.01, small, tl.log(1.0 + y))


@triton.jit
def decay_logs(logs, steps, position, start, TILE: tl.constexpr):
    """Return (logs, last): the logarithm of the decay from the start of a tile to each token, and
    to its last one. `logs` has those of pending tokens, before position `start`, and zeros;
    `steps` those of one token each, zeros for tokens that are not in the chunk.

    The logarithms are added one by one, as by a chunk of each token.
    """
    newest = tl.minimum(tl.max(position, axis=0) + 1, start) - 1
    last = tl.sum(tl.where(position == newest, logs, 0.0), axis=0)
    sums = logs
    for i in tl.static_range(TILE):
        own = tl.arange(0, TILE) == i
        last += tl.sum(tl.where(own, steps, 0.0), axis=0)
        sums = tl.where(own, last, sums)
    return tl.where(position < start, logs, sums), last


@triton.jit
def unit_rows(x):
    """Return the rows of x [TILE, N] with length 1."""
    return x * (1.0 / tl.sqrt_rn(tl.sum(x * x, axis=1) + 1e-6))[:, None]


@triton.jit
def matrix_of(matrix, slot, head, HEADS: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    """Return a pointer to the matrix of a head in a slot."""
    return matrix + (slot.to(tl.int64) * HEADS + head) * (N * D)


@triton.jit
def substituted(right, weights, first, count, PRECISION: tl.constexpr):
    """Return u with u_i = right_i - sum over j < i of weights_ij u_j. Lines before `first` are
    known: they are those of `right`, and their weights are zeros.

    A repetition settles the next line, and repeats the bits of the lines before it.
    """
    u = right
    for _ in range(tl.maximum(first, 1), count):
        u = right - tl.dot(weights, u, input_precision=PRECISION)
    return u


@triton.jit
def tile_steps(
    gates, lane, new, shift, scale, low, high, HEADS: tl.constexpr, DELTA: tl.constexpr
):  # fmt: skip
    """Return (steps, beta) of the tokens of a tile: the step of the decay, and the factor of the
    value, which is 0 for tokens that are not in the chunk. `gates`: the head's gate of the first
    token; a delta net has those of beta before those of the steps."""
    if DELTA:
        gate = tl.load(gates + lane * (2 * HEADS) + HEADS, mask=new, other=0.0)
        steps = softplus(gate.to(tl.float32) + shift)
        mixed = tl.load(gates + lane * (2 * HEADS), mask=new, other=0.0)
        beta = scale / (1.0 + tl.exp(-mixed.to(tl.float32)))
    else:
        gate = tl.load(gates + lane * HEADS, mask=new, other=0.0)
        steps = softplus(gate.to(tl.float32) + shift)
        steps = tl.minimum(tl.maximum(steps, low), high)
        beta = steps
    return steps, tl.where(new, beta, 0.0)


@triton.jit
def tile_products(
    key, query, value, state, earlier, beta, logs, first, count,
    TILE: tl.constexpr, DELTA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return (u, out) of the tokens of a tile, each [TILE, columns], without the direct part of
    Mamba2. `earlier`: u of pending tokens, zeros for others. `first`, `count`: see `substituted`.
    """
    line, other = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    fade = tl.exp(logs)[:, None]
    decay = tl.exp(tl.minimum(logs[:, None] - logs[None, :], 0.0))
    turned = tl.trans(key)
    u = beta[:, None] * value
    if DELTA:
        read = tl.dot(key, state, input_precision=PRECISION)
        u = beta[:, None] * (value - fade * read)
        score = tl.dot(key, turned, input_precision=PRECISION)
        weights = tl.where(line > other, beta[:, None] * decay * score, 0.0)
        u = substituted(u + earlier, weights, first, count, PRECISION)
    else:
        u += earlier
    score = tl.dot(query, turned, input_precision=PRECISION)
    weights = tl.where(line >= other, decay * score, 0.0)
    out = fade * tl.dot(query, state, input_precision=PRECISION)
    out += tl.dot(weights, u, input_precision=PRECISION)
    return u, out
