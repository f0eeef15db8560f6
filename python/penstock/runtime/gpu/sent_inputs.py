"""Sends the inputs of a step that the CPU has built to a device, in one copy.

The target's steps build their inputs on the device, from the persistent batch. The steps of a
drafter follow from tokens that the CPU has just read, so the CPU builds their inputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.backend import Ints
from penstock.runtime.gpu.adapter_groups import ALIGNED_WORDS
from penstock.runtime.gpu.host_transfers import HostTransfers

_VECTORS = ("tokens", "positions", "slots", "query_starts", "context_lens", "sample_rows")


def sent_words(max_tokens: int, max_rows: int, max_blocks: int) -> int:
    """Return the words of the largest step of a `SentInputs` with these sizes."""
    parts = len(_VECTORS) + 2
    return 4 * max_tokens + (3 + max_blocks) * max_rows + 1 + parts * ALIGNED_WORDS


class SentInputs:
    """Sends steps of at most `max_tokens` tokens and `max_rows` rows, whose block tables have at
    most `max_blocks` entries, to `device`."""

    def __init__(
        self, device: torch.device, max_tokens: int, max_rows: int, max_blocks: int
    ) -> None:
        self._transfers = HostTransfers(device, sent_words(max_tokens, max_rows, max_blocks))

    def send(
        self, inputs: StepInputs[Ints], index: Ints, width: int | None = None
    ) -> tuple[StepInputs[torch.Tensor], torch.Tensor]:
        """Start to copy the inputs of a step, and `index: [T]`. Return both on the device, valid
        until the next call. Steps of equal sizes are at equal addresses.

        `width`: number of entries of a block table on the device, of which those after the given
        ones are undefined; None: as many as are given.
        """
        words, device_words = self._transfers.staging(), self._transfers.words
        sent: list[torch.Tensor] = []
        end = 0
        for vector in (*(getattr(inputs, name) for name in _VECTORS), index):
            begin, end = _after(end, len(vector))
            words[begin:end] = vector
            sent.append(device_words[begin:end])
        rows, given = inputs.block_tables.shape
        width = given if width is None else width
        begin, end = _after(end, rows * width)
        words[begin:end].reshape(rows, width)[:, :given] = inputs.block_tables
        tables = device_words[begin:end].view(rows, width)
        self._transfers.send(end)
        tokens, positions, slots, query_starts, context_lens, sample_rows, sent_index = sent
        step = StepInputs(tokens, positions, slots, query_starts, context_lens, tables, sample_rows)
        return step, sent_index


def _after(end: int, length: int) -> tuple[int, int]:
    begin = -(-end // ALIGNED_WORDS) * ALIGNED_WORDS
    return begin, begin + length


def single_tokens(inputs: StepInputs[Ints]) -> StepInputs[Ints]:
    """Return the same step with one row per token, whose context ends with the token. Attention
    computes the same, because the keys and values of all tokens are stored before."""
    count, lengths = len(inputs.tokens), np.diff(inputs.query_starts)
    contexts = np.arange(1, count + 1, dtype=np.int32)
    contexts += np.repeat(inputs.context_lens - inputs.query_starts[1:], lengths)
    return replace(
        inputs,
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=contexts,
        block_tables=np.repeat(inputs.block_tables, lengths, axis=0),
    )


def filled_up(
    inputs: StepInputs[Ints], size: int, scratch_block: int, block_size: int
) -> StepInputs[Ints]:
    """Return a step of one token per row with further rows up to `size`, which compute the first
    token of a sequence in the KV block `scratch_block`. Every token is sampled."""
    count, (_, width) = len(inputs.tokens), inputs.block_tables.shape

    def fill(values: Ints, value: int) -> Ints:
        return np.concatenate([values, np.full(size - count, value, np.int32)])

    return StepInputs(
        tokens=fill(inputs.tokens, 0),
        positions=fill(inputs.positions, 0),
        slots=fill(inputs.slots, scratch_block * block_size),
        query_starts=np.arange(size + 1, dtype=np.int32),
        context_lens=fill(inputs.context_lens, 1),
        block_tables=np.concatenate(
            [inputs.block_tables, np.full((size - count, width), scratch_block, np.int32)]
        ),
        sample_rows=np.arange(size, dtype=np.int32),
    )


def padding(size: int, scratch_block: int, block_size: int) -> StepInputs[Ints]:
    """Return a step of `size` rows as `filled_up` adds them."""
    none = np.empty(0, np.int32)
    empty = StepInputs(none, none, none, none, none, np.empty((0, 1), np.int32), none)
    return filled_up(empty, size, scratch_block, block_size)
