"""Packs the adapter groups of a step into the words that are sent to the device. The `AdapterRows`
of the tokens and of the sampled rows are views of these words.

In a captured step, the words of the groups are at the same addresses every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.persistent_batch import CHUNK_WORDS
from penstock.kernels.step_inputs import AdapterRows
from penstock.runtime.adapter_rows import GroupedRows, group_rows
from penstock.scheduler.types import Chunk

Ints = npt.NDArray[np.int32]

ALIGNED_WORDS = 4
"""Kernels read 16 bytes at a time, so every array starts at a multiple of this many words."""


@dataclass(frozen=True, slots=True)
class GroupWords:
    """The positions of the adapter groups in the words of a step, after the words of the chunks.

    `groups`: number of groups.
    `chunks`, `tokens`: number of chunks and of tokens of the step.
    `places`: number of tokens whose logits are computed.
    """

    groups: int
    chunks: int
    tokens: int
    places: int

    @property
    def end(self) -> int:
        """Index of the first word after the groups."""
        *_, last = self._windows()
        end: int = last.stop
        return end

    def write(self, words: Ints, chunks: tuple[Chunk, ...], slots: Ints) -> None:
        """Write the groups of `chunks`. `slots[i]`: the adapter slot of chunk i, or -1; at least
        one chunk has an adapter. Padding chunks belong to no group."""
        grouped = _group(chunks, slots, self.groups)
        for window, part in zip(self._windows(), _parts(*grouped), strict=True):
            words[window.start : window.start + len(part)] = part

    def write_dummy(self, words: Ints) -> None:
        """Write groups for a step in which no token has an adapter."""
        for window in self._windows():
            words[window] = 0

    def read(self, words: Any) -> tuple[AdapterRows[Any], AdapterRows[Any]]:
        """Return the groups of the tokens and of the sampled rows, as views of `words`."""
        slots, *parts = (words[window] for window in self._windows())
        order, starts, sampled, sampled_starts = parts
        return AdapterRows(slots, order, starts), AdapterRows(slots, sampled, sampled_starts)

    def _windows(self) -> Iterator[slice]:
        begin = self.chunks * CHUNK_WORDS
        starts = self.groups + 1
        for size in (self.groups, self.tokens, starts, self.places, starts):
            begin = -(-begin // ALIGNED_WORDS) * ALIGNED_WORDS
            yield slice(begin, begin + size)
            begin += size


def _group(chunks: tuple[Chunk, ...], slots: Ints, groups: int) -> GroupedRows:
    """Group the tokens of a step and its sampled rows by adapter slot. The sampled rows are first
    the tokens at which a row samples, then the tokens at which a prompt is scored."""
    lengths = [chunk.length + len(chunk.draft_tokens) for chunk in chunks]
    samples = [1 + len(chunk.draft_tokens) if chunk.samples else 0 for chunk in chunks]
    scores = [chunk.num_scores for chunk in chunks]
    places = np.concatenate([np.repeat(slots, samples), np.repeat(slots, scores)])
    grouped = group_rows(np.repeat(slots, lengths), places, groups)
    assert grouped is not None, "groups of a step without adapters"
    return grouped


def _parts(tokens: AdapterRows[Ints], places: AdapterRows[Ints]) -> tuple[Ints, ...]:
    return tokens.slots, tokens.order, tokens.starts, places.order, places.starts
