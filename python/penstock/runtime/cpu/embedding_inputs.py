"""Builds the inputs of a step that computes whole sequences, without a KV cache between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.adapter_rows import group_rows
from penstock.runtime.media_rows import MediaTable
from penstock.scheduler.types import Chunk, MediaRun


@dataclass(frozen=True, slots=True)
class SequenceMedia:
    """The media of a sequence; see `Admit`."""

    runs: tuple[MediaRun, ...] = ()
    rope_positions: bytes = b""


PooledToken: TypeAlias = Literal["first", "last"]
Ints = npt.NDArray[np.int32]


def whole_sequences(
    sequences: Sequence[Sequence[int]],
    block_size: int,
    pooled_token: PooledToken,
    adapter_slots: Sequence[int] = (),
    second_starts: Sequence[int] = (),
    second_offset: int = 0,
) -> StepInputs[Ints]:
    """Return the inputs of a step that computes `sequences`, each in its own KV blocks, from block
    0 on.

    `pooled_token`: the token of each sequence whose hidden state is returned.
    `adapter_slots`: adapter slot of each sequence, negative for none; empty if no sequence has an
    adapter.
    `second_starts`: start of the second text of each sequence; the positions of that text are
    shifted by `second_offset`.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    starts = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    blocks = -(-lengths // block_size)
    first_block = np.cumsum(blocks) - blocks
    positions = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], lengths)
    slots = np.repeat(first_block * block_size, lengths) + positions
    if second_starts and second_offset:
        starts_of_tokens = np.repeat(np.array(second_starts, np.int32), lengths)
        positions = positions + np.int32(second_offset) * (positions >= starts_of_tokens)
    tables = first_block[:, None] + np.arange(blocks.max())
    tokens = np.fromiter((token for row in sequences for token in row), np.int32, int(starts[-1]))
    adapters = sampled = None
    if max(adapter_slots, default=-1) >= 0:
        row_slots = np.array(adapter_slots, np.int32)
        grouped = group_rows(np.repeat(row_slots, lengths), row_slots, len(row_slots))
        assert grouped is not None
        adapters, sampled = grouped
    return StepInputs(
        tokens=tokens,
        positions=positions,
        slots=slots.astype(np.int32),
        query_starts=starts,
        context_lens=lengths,
        block_tables=np.minimum(tables, blocks.sum() - 1).astype(np.int32),
        sample_rows=starts[:-1].copy() if pooled_token == "first" else starts[1:] - np.int32(1),
        adapters=adapters,
        sampled_adapters=sampled,
    )


def with_media(
    inputs: StepInputs[Ints], media: Sequence[SequenceMedia], table: MediaTable
) -> StepInputs[Ints]:
    """Return the inputs of a step with the media of its sequences. `table`: has a row for each
    sequence. The media are valid until the next call with this table."""
    lengths = inputs.context_lens.tolist()
    chunks = []
    for row, (own, length) in enumerate(zip(media, lengths, strict=True)):
        table.place(row, own.runs, own.rope_positions)
        chunks.append(Chunk(row, 0, length, samples=True))
    shifted = table.shifted(np.repeat(np.arange(len(lengths)), lengths), inputs.positions)
    positions, rows = table.inputs(chunks, shifted, inputs.positions, inputs.query_starts)
    for row in range(len(lengths)):
        table.release(row)
    return replace(inputs, positions=positions, media=rows)


def max_blocks(step_tokens: int, max_rows: int, block_size: int) -> int:
    """Return the largest number of KV blocks of a step. Each sequence may leave one block partly
    filled."""
    return -(-step_tokens // block_size) + max_rows
