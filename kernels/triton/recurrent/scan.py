"""The scans of gated delta nets and of Mamba2 over matrix states.

A program computes one head and up to 64 columns of D for the whole chunk of a row, tile by tile,
with these columns of the state in registers. The products of a tile, 16 tokens by N by 64, run on
tensor cores: in tf32 for 16-bit activations, in float32 for float32. Per tile with matrix S, keys
k, queries q and logarithms G of the decay from the start of the tile:

    u_i = beta_i (v_i - exp(G_i) S^T k_i - sum over j < i of exp(G_i - G_j) (k_i . k_j) u_j)
    out_i = exp(G_i) S^T q_i + sum over j <= i of exp(G_i - G_j) (q_i . k_j) u_j
    S = exp(G_15) S + sum over j of exp(G_15 - G_j) k_j u_j^T

In Mamba2, u_i = d_i x_i. One compiled kernel serves one token and long chunks: tokens that another
step computed are read from the ring, in the same lines of the tile.

Floor: decode reads 4 H N D bytes of matrices per row and writes them once per 16 tokens. A prompt
needs 6 N D operations per token and head (4 for Mamba2) and moves 4 bytes per token and column in
bfloat16, so that latency limits it: the tiles of a row follow each other, and of a delta net also
the 16 lines of a tile. H D / 64 programs share that latency.

A ring may hold pending tokens that the programs of a group still read where new ones belong. Such
rows write their keys and decays to spare memory, and a second launch copies them to the ring. A
step of one token per row has no such rows, but runs the same kernel: two compilations might differ
in the last bits.
"""

from __future__ import annotations

import torch

from penstock.kernels.ops.recurrent import GATED_DELTA_RULE, STATE_SPACE_SCAN
from penstock.kernels.recurrent_state import STATE_TILE, MatrixState
from penstock.kernels.registry import Impl
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.triton.compile.launch import ceil_div, launch, power_of_two, why_not
from penstock.kernels.triton.language import tl, triton
from penstock.kernels.triton.recurrent.scan_tile import (
    decay_logs,
    matrix_of,
    tile_products,
    tile_steps,
    unit_rows,
)
from penstock.kernels.triton.recurrent.state_chunk import chunk_of, one_token_rows, states_of

_COLUMNS = 64
"""Most columns of D in a program. Against 32 on an H200: decode of 256 rows 378 us instead of 468,
8 prompts of 1,024 tokens 720 us instead of 898, because the keys of a tile are used for more."""

_LEAST = 16  # rows and columns of a product on tensor cores
_COPIED = 1024


@triton.jit
def _boundary(start, keep, TILE: tl.constexpr):
    """Return the number of leading tokens in the matrix after a chunk."""
    return (start + keep) // TILE * TILE


@triton.jit
def _replaces(start, stop, base, ring):
    """Return 1 if a chunk writes where the ring holds pending tokens that it reads, else 0."""
    return ((start > base) & (stop - base > ring)).to(tl.int32)


@triton.jit(do_not_specialize=["ring", "scale", "low", "high"])
def scan_kernel(
    out, x, gates, constants, matrix, keys, values, decays, spare_keys, spare_decays,
    starts, contexts, sources, bases, targets, keeps, saves, saves_after,
    ring, scale, low, high,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, TILE: tl.constexpr, DELTA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one head and BLOCK_D columns for the chunk of a row.

    DELTA: a gated delta net; `scale` multiplies the sigmoid of b. Otherwise Mamba2, with time steps
    from `low` to `high`.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    token, start, stop = chunk_of(starts, contexts, row)
    if (stop > 0) & (stop > start):
        source, target = tl.load(sources + row), tl.load(targets + row)
        base, save = tl.load(bases + row), tl.load(saves + row)
        end = _boundary(start, tl.load(keeps + row), TILE)
        saved = tl.where(save < 0, -1, start + tl.load(saves_after + row))
        PER_GROUP: tl.constexpr = HEADS // GROUPS
        KEYS: tl.constexpr = GROUPS * N
        COLUMNS: tl.constexpr = 2 * KEYS + HEADS * D
        group = head // PER_GROUP
        k_column = (KEYS if DELTA else HEADS * D) + group * N
        q_column = (0 if DELTA else HEADS * D + KEYS) + group * N
        v_column = (2 * KEYS if DELTA else 0) + head * D
        lane, n = tl.arange(0, TILE), tl.arange(0, BLOCK_N)
        d = tl.program_id(2) * BLOCK_D + tl.arange(0, BLOCK_D)
        whole = (n < N)[:, None] & (d < D)[None, :]
        element = n[:, None] * D + d[None, :]
        origin = matrix_of(matrix, tl.maximum(source, 0), head, HEADS, N, D)
        known = whole & (source + n * 0 >= 0)[:, None]
        state = tl.load(origin + element, mask=known, other=0.0)
        own = matrix_of(matrix, target, head, HEADS, N, D)
        snapshot = matrix_of(matrix, save, head, HEADS, N, D)
        if (base == end) & (source != target):
            tl.store(own + element, state, mask=whole)
        if base == saved:
            tl.store(snapshot + element, state, mask=whole)
        replaces = _replaces(start, stop, base, ring)
        row_keys = keys + target.to(tl.int64) * ring * KEYS + group * N
        row_values = values + (target.to(tl.int64) * ring * HEADS + head) * D
        row_decays = decays + target.to(tl.int64) * ring * HEADS + head
        rate, shift = tl.load(constants + head), tl.load(constants + HEADS + head)
        for tile in range(base, stop, TILE):
            position = tile + lane
            new = (position >= start) & (position < stop)
            # Only the first token of the tile needs a 64-bit index.
            at = (token + tile - start).to(tl.int64)
            in_ring = position % ring
            columns = new[:, None] & (n < N)[None, :]
            source_row = x + at * COLUMNS + (lane * COLUMNS)[:, None]
            key = tl.load(source_row + k_column + n[None, :], mask=columns, other=0.0)
            query = tl.load(source_row + q_column + n[None, :], mask=columns, other=0.0)
            key, query = key.to(tl.float32), query.to(tl.float32)
            inside = new[:, None] & (d < D)[None, :]
            value = tl.load(source_row + v_column + d[None, :], mask=inside, other=0.0)
            value = value.to(tl.float32)
            tile_gates = gates + at * ((2 if DELTA else 1) * HEADS) + head
            steps, beta = tile_steps(tile_gates, lane, new, shift, scale, low, high, HEADS, DELTA)
            if DELTA:
                key, query = unit_rows(key), unit_rows(query) / tl.sqrt_rn(1.0 * N)
            logs = tl.zeros((TILE,), dtype=tl.float32)
            earlier = tl.zeros((TILE, BLOCK_D), dtype=tl.float32)
            if tile < start:  # pending tokens
                old = position < start
                logs += tl.load(row_decays + in_ring * HEADS, mask=old, other=0.0)
                pending = row_keys + (in_ring * KEYS)[:, None] + n[None, :]
                key += tl.load(pending, mask=old[:, None] & (n < N)[None, :], other=0.0)
                pending = row_values + (in_ring * HEADS * D)[:, None] + d[None, :]
                earlier += tl.load(pending, mask=old[:, None] & (d < D)[None, :], other=0.0)
            logs, last = decay_logs(logs, tl.where(new, -rate * steps, 0.0), position, start, TILE)
            u, result = tile_products(
                key, query, value, state, earlier, beta, logs, start - tile,
                tl.minimum(stop - tile, TILE), TILE, DELTA, PRECISION,
            )  # fmt: skip
            if not DELTA:
                result += tl.load(constants + 2 * HEADS + head) * value
            tile_out = out + (at * HEADS + head) * D
            tl.store(tile_out + (lane * HEADS * D)[:, None] + d[None, :], result, mask=inside)
            held = new & (position >= end)
            kept_values = row_values + (in_ring * HEADS * D)[:, None] + d[None, :]
            tl.store(kept_values, u, mask=held[:, None] & (d < D)[None, :])
            if tl.program_id(2) == 0:
                to_keys, to_decays = row_keys, row_decays
                if replaces != 0:
                    to_keys = spare_keys + row.to(tl.int64) * ring * KEYS + group * N
                    to_decays = spare_decays + row.to(tl.int64) * ring * HEADS + head
                tl.store(to_decays + in_ring * HEADS, logs, mask=held)
                if head % PER_GROUP == 0:
                    kept_keys = to_keys + (in_ring * KEYS)[:, None] + n[None, :]
                    tl.store(kept_keys, key, mask=held[:, None] & (n < N)[None, :])
            if tile + TILE <= stop:
                faded = key * tl.exp(last - logs)[:, None]
                state = tl.exp(last) * state
                state += tl.dot(tl.trans(faded), u, input_precision=PRECISION)
                if tile + TILE == end:
                    tl.store(own + element, state, mask=whole)
                if tile + TILE == saved:
                    tl.store(snapshot + element, state, mask=whole)


@triton.jit(do_not_specialize=["ring"])
def copy_pending_kernel(
    keys, decays, spare_keys, spare_decays, starts, contexts, bases, targets, keeps, ring,
    KEYS: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy the key and the decays of one pending token from spare memory to the ring, for rows that
    replaced their own pending tokens."""
    row = tl.program_id(0)
    _, start, stop = chunk_of(starts, contexts, row)
    end = _boundary(start, tl.load(keeps + row), TILE)
    position = tl.maximum(start, end) + tl.program_id(1)
    replaces = _replaces(start, stop, tl.load(bases + row), ring)
    if (stop > 0) & (position < stop) & (replaces != 0):
        origin = row.to(tl.int64) * ring + position % ring
        place = tl.load(targets + row).to(tl.int64) * ring + position % ring
        for first in range(0, KEYS, BLOCK):
            column = first + tl.arange(0, BLOCK)
            key = tl.load(spare_keys + origin * KEYS + column, mask=column < KEYS)
            tl.store(keys + place * KEYS + column, key, mask=column < KEYS)
        for first in range(0, HEADS, BLOCK):
            column = first + tl.arange(0, BLOCK)
            log = tl.load(spare_decays + origin * HEADS + column, mask=column < HEADS)
            tl.store(decays + place * HEADS + column, log, mask=column < HEADS)


def _scan(
    x: torch.Tensor,
    gates: torch.Tensor,
    constants: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    heads: tuple[int, int, int, int],
    delta: int,
    numbers: tuple[float, float, float],
) -> torch.Tensor:
    """Launch the scan. `numbers`: scale of beta, least and most time step."""
    states = states_of(inputs)
    groups, num_heads, key_dim, value_dim = heads
    count, ring = inputs.context_lens.shape[0], state.keys.shape[1]
    out = x.new_empty(x.shape[0], num_heads * value_dim)
    one = one_token_rows(x.shape[0], inputs)
    spare_keys, spare_decays = state.keys, state.decays
    if not one:
        spare_keys = state.keys.new_empty(count, ring, groups * key_dim)
        spare_decays = state.decays.new_empty(count, ring, num_heads)
    block_d = min(max(power_of_two(value_dim), _LEAST), _COLUMNS)
    chunks = (inputs.query_starts, inputs.context_lens)
    launch(
        scan_kernel,
        (count, num_heads, ceil_div(value_dim, block_d)),
        *(out, x, gates, constants, state.matrix, state.keys, state.values, state.decays),
        *(spare_keys, spare_decays, *chunks, states.source, states.base, states.target),
        *(states.keep, states.save, states.save_after, ring, *numbers),
        num_warps=4,
        num_stages=1,
        GROUPS=groups,
        HEADS=num_heads,
        N=key_dim,
        D=value_dim,
        BLOCK_N=max(power_of_two(key_dim), _LEAST),
        BLOCK_D=block_d,
        TILE=STATE_TILE,
        DELTA=delta,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
    )
    if not one:
        launch(
            copy_pending_kernel,
            (count, ring),
            *(state.keys, state.decays, spare_keys, spare_decays, *chunks),
            *(states.base, states.target, states.keep, ring),
            num_warps=1,
            KEYS=groups * key_dim,
            HEADS=num_heads,
            TILE=STATE_TILE,
            BLOCK=_COPIED,
        )
    return out


def gated_delta_rule(
    qkv: torch.Tensor,
    gates: torch.Tensor,
    decay: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    heads: tuple[int, int, int, int],
    beta_scale: float,
) -> torch.Tensor:
    """See `RecurrentOps.gated_delta_rule`. All tensors are contiguous."""
    numbers = (float(beta_scale), 0.0, 0.0)
    return _scan(qkv, gates, decay, inputs, state, heads, 1, numbers)


def state_space_scan(
    xbc: torch.Tensor,
    dt: torch.Tensor,
    constants: torch.Tensor,
    inputs: StepInputs[torch.Tensor],
    state: MatrixState[torch.Tensor],
    heads: tuple[int, int, int, int],
    dt_limits: tuple[float, float],
) -> torch.Tensor:
    """See `RecurrentOps.state_space_scan`. All tensors are contiguous."""
    least, most = dt_limits
    numbers = (1.0, float(least), float(most))
    return _scan(xbc, dt, constants, inputs, state, heads, 0, numbers)


GATED_DELTA_RULE.register(Impl("triton", gated_delta_rule, why_not))
STATE_SPACE_SCAN.register(Impl("triton", state_space_scan, why_not))
