"""Adapter groups of a step as words of its upload: `AdapterRows` of the tokens and of the sampled
rows, whose tensors are views of those words.

A captured step has its words at the same place every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import AdapterRows
from penstock.kernels.persistent_batch import CHUNK_WORDS
from penstock.runtime.adapter_rows import GroupedRows, group_rows
from penstock.scheduler.types import Chunk

Ints = npt.NDArray[np.int32]

ALIGNED_WORDS = 4
"""Kernels read 16 bytes at a time: every array starts at a multiple of this."""


@dataclass(frozen=True, slots=True)
class GroupWords:
    """The layout of `groups` groups in a step of `chunks` chunks, `tokens` tokens and `places`
    sampled rows. The words follow those of the chunks."""

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
        """Write the groups of `chunks`. `slots[i]` is the adapter slot of chunk i, or -1; at least
        one chunk has an adapter. Padding rows beyond the chunks belong to no group."""
        grouped = _group(chunks, slots, self.groups)
        for window, part in zip(self._windows(), _parts(*grouped), strict=True):
            words[window.start : window.start + len(part)] = part

    def write_dummy(self, words: Ints) -> None:
        """Write groups in which no row has an adapter."""
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
    """Group the tokens and the sampled rows: first rows to sample, then rows to score."""
    lengths = [chunk.length + len(chunk.draft_tokens) for chunk in chunks]
    samples = [1 + len(chunk.draft_tokens) if chunk.samples else 0 for chunk in chunks]
    scores = [chunk.num_scores for chunk in chunks]
    places = np.concatenate([np.repeat(slots, samples), np.repeat(slots, scores)])
    grouped = group_rows(np.repeat(slots, lengths), places, groups)
    assert grouped is not None, "groups of a step without adapters"
    return grouped


def _parts(tokens: AdapterRows[Ints], places: AdapterRows[Ints]) -> tuple[Ints, ...]:
    return tokens.slots, tokens.order, tokens.starts, places.order, places.starts
