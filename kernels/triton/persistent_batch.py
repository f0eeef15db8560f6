"""Kernels of the persistent batch: a program applies one change to a row, or prepares a tile of one
chunk."""

from __future__ import annotations

import torch

from penstock.kernels.ops.persistent_batch import APPEND_TOKENS, PREPARE_STEP, UPDATE_ROWS
from penstock.kernels.persistent_batch import (
    CHUNK_WORDS,
    RUN_WORDS,
    UPDATE_WORDS,
    RowState,
    StepBuffers,
    Upload,
)
from penstock.kernels.registry import Impl
from penstock.kernels.triton.compile.launch import ceil_div, launch, why_not
from penstock.kernels.triton.language import tl, triton

_BLOCK = 256
_MOST_TILES = 32


@triton.jit
def _float(word):
    return tl.load(word).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["updates_at", "updates", "runs_at", "table_width"])
def update_rows_kernel(
    known,
    last_token,
    tables,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    presence,
    frequency,
    repetition,
    num_biases,
    num_suppressed,
    suppressed_until,
    rope_shift,
    words,
    updates_at,
    updates,
    runs_at,
    table_width,
    UPDATE: tl.constexpr,
    RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0)
    if index < updates:
        own = words + updates_at + index * UPDATE
        row = tl.load(own).to(tl.int64)
        tl.store(known + row, tl.load(own + 1))
        tl.store(last_token + row, tl.load(own + 2))
        tl.store(temperature + row, _float(own + 3))
        tl.store(top_k + row, tl.load(own + 4))
        tl.store(top_p + row, _float(own + 5))
        tl.store(min_p + row, _float(own + 6))
        low, high = tl.load(own + 7).to(tl.int64), tl.load(own + 8).to(tl.int64)
        tl.store(seed + row, (high << 32) | (low & 0xFFFFFFFF))
        tl.store(presence + row, _float(own + 9))
        tl.store(frequency + row, _float(own + 10))
        tl.store(repetition + row, _float(own + 11))
        tl.store(num_biases + row, tl.load(own + 12))
        tl.store(num_suppressed + row, tl.load(own + 13))
        tl.store(suppressed_until + row, tl.load(own + 14))
        tl.store(rope_shift + row, tl.load(own + 15))
    else:
        run = words + runs_at + (index - updates) * RUN
        row, first = tl.load(run).to(tl.int64), tl.load(run + 1)
        count, source = tl.load(run + 2), tl.load(run + 3)
        for base in range(0, count, BLOCK):
            lane = base + tl.arange(0, BLOCK)
            block = tl.load(words + source + lane, mask=lane < count, other=0)
            tl.store(tables + row * table_width + first + lane, block, mask=lane < count)


@triton.jit(do_not_specialize=["tokens_at", "table_width", "out_width"])
def prepare_step_kernel(
    tokens,
    positions,
    slots,
    query_starts,
    context_lens,
    block_tables,
    sample_rows,
    temperature,
    top_k,
    top_p,
    min_p,
    seed,
    position,
    rows,
    words,
    known,
    last_token,
    tables,
    row_temperature,
    row_top_k,
    row_top_p,
    row_min_p,
    row_seed,
    rope_shift,
    tokens_at,
    table_width,
    out_width,
    CHUNK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    index, tile = tl.program_id(0), tl.program_id(1)
    stride = tl.num_programs(1) * BLOCK
    own = words + index * CHUNK
    row = tl.load(own).to(tl.int64)
    given, length, first = tl.load(own + 1), tl.load(own + 2), tl.load(own + 3)
    start = tl.where(given < 0, tl.load(known + row) - 1, given)
    sampled = tl.load(last_token + row)
    num_sent = tl.where(given < 0, 0, length)
    table = tables + row * table_width
    for base in range(tile * BLOCK, length, stride):
        lane = base + tl.arange(0, BLOCK)
        inside = lane < length
        sent = tl.load(words + tokens_at + first + lane, mask=lane < num_sent, other=0)
        tl.store(tokens + first + lane, tl.where(given < 0, sampled, sent), mask=inside)
        place = start + lane
        tl.store(positions + first + lane, place + tl.load(rope_shift + row), mask=inside)
        block = tl.load(table + place // BLOCK_TOKENS, mask=inside, other=0)
        slot = block * BLOCK_TOKENS + place % BLOCK_TOKENS
        tl.store(slots + first + lane, slot, mask=inside)
    blocks = (start + length + BLOCK_TOKENS - 1) // BLOCK_TOKENS
    copy = block_tables + index.to(tl.int64) * out_width
    for base in range(tile * BLOCK, blocks, stride):
        lane = base + tl.arange(0, BLOCK)
        block = tl.load(table + lane, mask=lane < blocks, other=0)
        tl.store(copy + lane, block, mask=lane < blocks)
    if tile == 0:
        if index == 0:
            tl.store(query_starts, 0)
        tl.store(query_starts + index + 1, first + length)
        tl.store(context_lens + index, start + length)
        score_place, score_from = tl.load(own + 6), tl.load(own + 7)
        scores = tl.load(own + 8)
        for base in range(0, scores, BLOCK):
            lane = base + tl.arange(0, BLOCK)
            scored = first + score_from - start + lane
            tl.store(sample_rows + score_place + lane, scored, mask=lane < scores)
        place, draft = tl.load(own + 4), tl.load(own + 5)
        samples = tl.where(place < 0, 0, 1 + draft)
        for base in range(0, samples, BLOCK):
            lane = base + tl.arange(0, BLOCK)
            inside = lane < samples
            at = place + lane
            tl.store(sample_rows + at, first + length - 1 - draft + lane, mask=inside)
            tl.store(position + at, (start + length - draft + lane).to(tl.int64), mask=inside)
            tl.store(temperature + at, tl.load(row_temperature + row), mask=inside)
            tl.store(top_k + at, tl.load(row_top_k + row), mask=inside)
            tl.store(top_p + at, tl.load(row_top_p + row), mask=inside)
            tl.store(min_p + at, tl.load(row_min_p + row), mask=inside)
            tl.store(seed + at, tl.load(row_seed + row), mask=inside)
            tl.store(rows + at, row.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["rows", "vocabulary"])
def append_tokens_kernel(
    known, last_token, counts, words, context_lens, tokens, rows, vocabulary, CHUNK: tl.constexpr
):
    index = tl.program_id(0)
    own = words + index * CHUNK
    row = tl.load(own).to(tl.int64)
    place, draft = tl.load(own + 4), tl.load(own + 5)
    if (place >= 0) & (draft == 0) & (row < rows):
        token = tl.load(tokens + place)
        tl.store(last_token + row, tl.maximum(token, 0))
        tl.store(known + row, tl.load(context_lens + index) + 1)
        count = counts + row * vocabulary + token
        seen = tl.load(count, mask=token >= 0, other=0)
        tl.store(count, tl.maximum(seen, 1) + 1, mask=token >= 0)


def update_rows(state: RowState[torch.Tensor], upload: Upload[torch.Tensor]) -> None:
    """See `kernels.ops.persistent_batch`."""
    adjust = state.adjust
    launch(
        update_rows_kernel,
        (upload.num_updates + upload.num_runs,),
        *(state.known, state.last_token, state.tables, state.temperature),
        *(state.top_k, state.top_p, state.min_p, state.seed),
        *(adjust.presence, adjust.frequency, adjust.repetition),
        *(adjust.num_biases, adjust.num_suppressed, adjust.suppressed_until, state.rope_shift),
        upload.words,
        *(upload.updates_at, upload.num_updates, upload.runs_at, state.tables.shape[1]),
        UPDATE=UPDATE_WORDS,
        RUN=RUN_WORDS,
        BLOCK=_BLOCK,
    )


def prepare_step(
    state: RowState[torch.Tensor],
    upload: Upload[torch.Tensor],
    slots: StepBuffers[torch.Tensor],
    chunks: int,
    block_size: int,
) -> None:
    """See `kernels.ops.persistent_batch`. The block tables are contiguous."""
    out = slots.inputs
    longest = len(out.tokens) - chunks + 1  # if every other chunk has one token
    launch(
        prepare_step_kernel,
        (chunks, min(max(ceil_div(longest, _BLOCK), 1), _MOST_TILES)),
        *(out.tokens, out.positions, out.slots, out.query_starts, out.context_lens),
        *(out.block_tables, out.sample_rows),
        *(slots.temperature, slots.top_k, slots.top_p, slots.min_p, slots.seed, slots.position),
        slots.rows,
        *(upload.words, state.known, state.last_token, state.tables, state.temperature),
        *(state.top_k, state.top_p, state.min_p, state.seed, state.rope_shift),
        *(upload.tokens_at, state.tables.shape[1], out.block_tables.shape[1]),
        CHUNK=CHUNK_WORDS,
        BLOCK_TOKENS=block_size,
        BLOCK=_BLOCK,
    )


def append_tokens(
    state: RowState[torch.Tensor],
    upload: Upload[torch.Tensor],
    context_lens: torch.Tensor,
    tokens: torch.Tensor,
    chunks: int,
) -> None:
    """See `kernels.ops.persistent_batch`."""
    launch(
        append_tokens_kernel,
        (chunks,),
        *(state.known, state.last_token, state.adjust.counts, upload.words, context_lens, tokens),
        *(len(state.known) - 1, state.adjust.counts.shape[1]),
        num_warps=1,
        CHUNK=CHUNK_WORDS,
    )


UPDATE_ROWS.register(Impl("triton", update_rows, why_not))
PREPARE_STEP.register(Impl("triton", prepare_step, why_not))
APPEND_TOKENS.register(Impl("triton", append_tokens, why_not))
