"""The ops of the persistent batch on a device: `update_rows` applies changes, `prepare_step` builds
the inputs of a step, `append_tokens` appends sampled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs, map_tensors
from penstock.kernels.ops.adjust_rows import random_adjustments
from penstock.kernels.persistent_batch import (
    CHUNK_WORDS,
    RUN_WORDS,
    UPDATE_WORDS,
    RowState,
    StepBuffers,
    Upload,
)
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.step_inputs import StepInputs


def update_rows(state: RowState[torch.Tensor], upload: Upload[torch.Tensor]) -> None:
    """Set the updated rows to the values in the upload, then append the runs of KV blocks in the
    upload to block tables."""
    words = upload.words
    for index in range(upload.num_updates):
        begin = upload.updates_at + index * UPDATE_WORDS
        update = words[begin : begin + UPDATE_WORDS]
        floats = update.view(torch.float32)
        row = int(update[0])
        state.known[row], state.last_token[row] = update[1], update[2]
        state.temperature[row], state.top_k[row] = floats[3], update[4]
        state.top_p[row], state.min_p[row] = floats[5], floats[6]
        state.seed[row] = (update[8].long() << 32) | (update[7].long() & 0xFFFFFFFF)
        adjust = state.adjust
        adjust.presence[row], adjust.frequency[row] = floats[9], floats[10]
        adjust.repetition[row], adjust.num_biases[row] = floats[11], update[12]
        adjust.num_suppressed[row], adjust.suppressed_until[row] = update[13], update[14]
        state.rope_shift[row] = update[15]
    for index in range(upload.num_runs):
        begin = upload.runs_at + index * RUN_WORDS
        row, first, count, source = words[begin : begin + RUN_WORDS].tolist()
        state.tables[row, first : first + count] = words[source : source + count]


def prepare_step(
    state: RowState[torch.Tensor],
    upload: Upload[torch.Tensor],
    slots: StepBuffers[torch.Tensor],
    chunks: int,
    block_size: int,
) -> None:
    """Write a step's inputs and sampling parameters to the buffers `slots`. The step consists of
    the first `chunks` chunks of the upload."""
    out, device = slots.inputs, upload.words.device
    out.query_starts[0] = 0
    for index in range(chunks):
        words = upload.words[index * CHUNK_WORDS : (index + 1) * CHUNK_WORDS].tolist()
        row, start, length, first, place, draft, score_place, score_from, scores = words
        end = first + length
        carried = start < 0
        if carried:
            start = int(state.known[row]) - 1
        source = upload.tokens_at + first
        out.tokens[first:end] = state.last_token[row] if carried else upload.words[source:][:length]
        position = torch.arange(start, start + length, dtype=torch.int32, device=device)
        out.positions[first:end] = position + state.rope_shift[row]
        block = state.tables[row, (position // block_size).long()]
        out.slots[first:end] = block * block_size + position % block_size
        out.query_starts[index + 1] = end
        out.context_lens[index] = start + length
        blocks = -(-(start + length) // block_size)
        out.block_tables[index, :blocks] = state.tables[row, :blocks]
        if scores:
            counting = torch.arange(scores, dtype=torch.int32, device=device)
            scored = out.sample_rows[score_place : score_place + scores]
            scored[:] = first + score_from - start + counting
        if place >= 0:
            sampled = slice(place, place + 1 + draft)
            counting = torch.arange(1 + draft, dtype=torch.int32, device=device)
            out.sample_rows[sampled] = end - 1 - draft + counting
            slots.position[sampled] = start + length - draft + counting
            slots.temperature[sampled] = state.temperature[row]
            slots.top_k[sampled], slots.top_p[sampled] = state.top_k[row], state.top_p[row]
            slots.min_p[sampled], slots.seed[sampled] = state.min_p[row], state.seed[row]
            slots.rows[sampled] = row


def append_tokens(
    state: RowState[torch.Tensor],
    upload: Upload[torch.Tensor],
    context_lens: torch.Tensor,
    tokens: torch.Tensor,
    chunks: int,
) -> None:
    """Append `tokens: [S]`, sampled in a step of `chunks` chunks, to the rows of chunks without
    draft tokens, and increase the counts of these tokens. A negative token (none could be sampled)
    is appended as 0 and not counted."""
    for index in range(chunks):
        words = upload.words[index * CHUNK_WORDS : (index + 1) * CHUNK_WORDS].tolist()
        row, place, draft = words[0], words[4], words[5]
        if place >= 0 and draft == 0 and row < len(state.known) - 1:
            state.last_token[row] = tokens[place].clamp(min=0)
            state.known[row] = context_lens[index] + 1
            if tokens[place] >= 0:
                counts = state.adjust.counts[row]
                counts[tokens[place]] = counts[tokens[place]].clamp(min=1) + 1


def _state(source: RandomInputs, rows: int, blocks: int, block_size: int) -> RowState[torch.Tensor]:
    """Return the state of `rows` rows, with random known tokens and scattered KV blocks, and of the
    padding row."""
    tables = 1 + torch.randperm((rows + 1) * blocks, generator=source.torch).int()
    return RowState(
        known=source.integers(1, blocks * block_size, rows + 1),
        last_token=source.integers(0, 100, rows + 1),
        tables=tables.view(rows + 1, blocks),
        temperature=source.normal(rows + 1).abs(),
        top_k=source.integers(0, 50, rows + 1),
        top_p=source.normal(rows + 1).abs(),
        min_p=source.normal(rows + 1).abs(),
        seed=source.integers(-(2**31), 2**31 - 1, rows + 1).long() << 17,
        rope_shift=source.integers(-9, 9, rows + 1),
        adjust=random_adjustments(source, rows, 100),
    )


def _slots(chunks: int, tokens: int, places: int, blocks: int) -> StepBuffers[torch.Tensor]:
    """Return the buffers of a step, filled with -7, which no step contains."""

    def room(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.full(shape, -7, dtype=dtype)

    inputs = StepInputs(
        tokens=room(tokens),
        positions=room(tokens),
        slots=room(tokens),
        query_starts=room(chunks + 1),
        context_lens=room(chunks),
        block_tables=room(chunks, blocks),
        sample_rows=room(places),
    )
    floats, longs = {"dtype": torch.float32}, {"dtype": torch.int64}
    return StepBuffers(
        inputs,
        temperature=room(places, **floats),
        top_k=room(places),
        top_p=room(places, **floats),
        min_p=room(places, **floats),
        seed=room(places, **longs),
        position=room(places, **longs),
        rows=room(places),
    )


# First position (None: known only to the device), number of tokens, number of draft tokens (None:
# nothing is sampled), first scored position, number of scores.
_ChunkSpec = tuple["int | None", int, "int | None", int, int]


def _step_inputs(rows: int, blocks: int, block_size: int, chunks: Sequence[_ChunkSpec]) -> Any:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        state = _state(source, rows, blocks, block_size)
        order = torch.randperm(rows, generator=source.torch)[: len(chunks)].tolist()
        order += [rows] * (len(chunks) - len(order))
        num_sampled = sum(1 + draft for _, _, draft, _, _ in chunks if draft is not None)
        words, first, place, score_place = [], 0, 0, num_sampled
        for row, (start, length, draft, score_from, scores) in zip(order, chunks, strict=True):
            words += [row, -1 if start is None else start, length, first]
            words += [-1 if draft is None else place, draft or 0, score_place, score_from, scores]
            first += length
            place += 0 if draft is None else 1 + draft
            score_place += scores
        tokens = source.integers(0, 100, first)
        return {
            "state": state,
            "upload": Upload(torch.cat([torch.tensor(words).int(), tokens]), tokens_at=len(words)),
            "slots": _slots(len(chunks) + 2, first + 3, score_place + 2, blocks),
            "chunks": len(chunks),
            "block_size": block_size,
            "tokens": source.integers(-1, 100, max(place, 1)),
            "context_lens": source.integers(1, 60, len(chunks)),
        }

    return make_inputs


def _changes_inputs(rows: int, blocks: int, updated: int, runs: int) -> Callable[[int], Any]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        state = _state(source, rows, blocks, 16)
        chosen = torch.randperm(rows, generator=source.torch).tolist()
        floats = source.normal(updated, UPDATE_WORDS).abs().view(torch.int32)
        updates = source.integers(-(2**31), 2**31 - 1, updated, UPDATE_WORDS)
        are_floats = [3, 5, 6, 9, 10, 11]
        updates[:, are_floats] = floats[:, are_floats]
        updates[:, 0] = torch.tensor(chosen[:updated])
        updates_at = 5
        runs_at = updates_at + updates.numel()
        blocks_at = runs_at + runs * RUN_WORDS
        described: list[int] = []
        given: list[int] = []
        for row in chosen[:runs]:
            begin = int(source.numpy.integers(0, blocks))
            count = int(source.numpy.integers(0, blocks - begin + 1))
            described += [row, begin, count, blocks_at + len(given)]
            given += source.numpy.integers(0, 1000, count).tolist()
        parts = [torch.full((5,), -9), updates.flatten(), torch.tensor([*described, *given])]
        words = torch.cat([part.int() for part in parts])
        return {"state": state, "upload": Upload(words, 0, updates_at, updated, runs_at, runs)}

    return make_inputs


def _columns(value: Any) -> tuple[torch.Tensor, ...]:
    """Return all tensors of a dataclass, including the tensors of nested dataclasses."""
    found: list[torch.Tensor] = []
    map_tensors(value, found.append)
    return tuple(found)


def _invoke_update(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    ops.update_rows(inputs["state"], inputs["upload"])
    return _columns(inputs["state"])


def _invoke_prepare(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    slots = inputs["slots"]
    ops.prepare_step(*(inputs[n] for n in ("state", "upload", "slots", "chunks", "block_size")))
    return _columns(slots)


def _invoke_append(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    names = ("state", "upload", "context_lens", "tokens", "chunks")
    ops.append_tokens(*(inputs[name] for name in names))
    state = inputs["state"]
    return state.known, state.last_token, state.adjust.counts


def _cost(inputs: Inputs) -> Cost:
    return Cost(8 * inputs["upload"].words.numel(), 0)


def _cost_of_step(inputs: Inputs) -> Cost:
    tables = inputs["slots"].inputs.block_tables
    chunks, tokens = inputs["chunks"], len(inputs["slots"].inputs.tokens)
    return Cost(8 * chunks * tables.shape[1] + 24 * tokens + 120 * chunks, 0)


_CARRIED: _ChunkSpec = (None, 1, 0, 0, 0)
_MIXED: tuple[_ChunkSpec, ...] = (
    (0, 5, 0, 0, 0),
    _CARRIED,
    (16, 40, None, 0, 0),
    (3, 4, 3, 0, 0),
    (7, 30, 0, 9, 12),
    (2, 9, None, 2, 9),
    _CARRIED,
)
_EXACT = {"exact": Tolerance(0.0, 0.0)}
_ORDER = ("triton", "reference")
_DECODES = {f"decode-{n}": _step_inputs(n, 64, 16, (_CARRIED,) * n) for n in (1, 32, 256)}

UPDATE_ROWS = Op(
    name="update_rows",
    signature="update state RowState; upload Upload",
    reference=update_rows,
    custom_invoke=_invoke_update,
    cases=tuple(
        Case(f"{updated}-rows-{runs}-runs", "exact", _changes_inputs(8, 300, updated, runs))
        for updated, runs in ((0, 1), (1, 0), (5, 7))
    ),
    benchmarks=(Case("32-rows-32-runs", "exact", _changes_inputs(256, 64, 32, 32)),),
    tolerance=_EXACT,
    cost=_cost,
    order=_ORDER,
)
PREPARE_STEP = Op(
    name="prepare_step",
    signature=(
        "state RowState; upload Upload; update slots StepBuffers; integer chunks; "
        "integer block_size"
    ),
    reference=prepare_step,
    custom_invoke=_invoke_prepare,
    cases=(
        Case("decode-1", "exact", _step_inputs(3, 9, 16, (_CARRIED,))),
        Case("decode-filled-up", "exact", _step_inputs(3, 9, 16, (_CARRIED,) * 5)),
        Case("mixed", "exact", _step_inputs(9, 9, 16, _MIXED)),
        Case("long-chunk", "exact", _step_inputs(2, 40, 64, ((300, 1500, 0, 0, 0), _CARRIED))),
        Case("blocks-of-4", "exact", _step_inputs(9, 30, 4, _MIXED)),
    ),
    benchmarks=tuple(Case(name, "exact", make_inputs) for name, make_inputs in _DECODES.items()),
    tolerance=_EXACT,
    cost=_cost_of_step,
    order=_ORDER,
)
APPEND_TOKENS = Op(
    name="append_tokens",
    signature=(
        "update state RowState; upload Upload; context_lens int32 [R]; tokens int32 [S]; "
        "integer chunks"
    ),
    reference=append_tokens,
    custom_invoke=_invoke_append,
    cases=(
        Case("decode-filled-up", "exact", _step_inputs(3, 9, 16, (_CARRIED,) * 5)),
        Case("mixed", "exact", _step_inputs(9, 9, 16, _MIXED)),
    ),
    benchmarks=tuple(Case(name, "exact", make_inputs) for name, make_inputs in _DECODES.items()),
    tolerance=_EXACT,
    cost=lambda inputs: Cost(20 * inputs["chunks"], 0),
    order=_ORDER,
)
