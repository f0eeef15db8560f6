"""Packs the recurrent states that a step reads and writes into the words that are sent to the
device. The `StateRows` of the step are views of these words.

In a captured step, the words of the states are at the same addresses every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.recurrent_state import StateRows
from penstock.runtime.gpu.adapter_groups import ALIGNED_WORDS
from penstock.runtime.state_rows import StateTable
from penstock.scheduler.types import Chunk

Ints = npt.NDArray[np.int32]

_COLUMNS = tuple(field.name for field in fields(StateRows))


@dataclass(frozen=True, slots=True)
class StateWords:
    """The positions of the states in the words of a step.

    `begin`: index of the first word that is free.
    `chunks`: number of chunks of the step.
    """

    begin: int
    chunks: int

    @property
    def end(self) -> int:
        """Index of the first word after the states."""
        *_, last = self._windows()
        end: int = last.stop
        return end

    def write(self, words: Ints, states: StateRows[Ints]) -> None:
        """Write the states of all chunks."""
        for window, column in zip(self._windows(), _columns(states), strict=True):
            words[window] = column

    def read(self, words: Any) -> StateRows[Any]:
        """Return the states as views of `words`."""
        return StateRows(*(words[window] for window in self._windows()))

    def _windows(self) -> Iterator[slice]:
        begin = self.begin
        for _ in _COLUMNS:
            begin = -(-begin // ALIGNED_WORDS) * ALIGNED_WORDS
            yield slice(begin, begin + self.chunks)
            begin += self.chunks


class StatePacker:
    """Packs the states of the steps of `max_num_seqs` rows, whose padding row has the next slot."""

    def __init__(self, max_num_seqs: int) -> None:
        self._scratch = max_num_seqs
        self._table = StateTable(max_num_seqs + 1)
        self._now = _padding(0, self._scratch)

    def step(self, chunks: tuple[Chunk, ...], fill_up_to: int) -> bool:
        """Compute the states of the next step, which may be padded to `fill_up_to` chunks. Return
        whether they are the same as in the last step. Called once per step, in the order of the
        steps."""
        rows = np.array([chunk.row for chunk in chunks])
        starts = np.array([chunk.start for chunk in chunks], np.int32)
        before, states = self._now, self._table.inputs(chunks, rows, starts)
        missing = max(fill_up_to - len(chunks), 0)
        if missing:
            pairs = zip(_columns(states), _columns(_padding(missing, self._scratch)), strict=True)
            states = StateRows(*map(np.concatenate, pairs))
        self._now = states
        return all(map(np.array_equal, _columns(states), _columns(before)))

    def write(self, words: Ints, begin: int) -> StateWords:
        """Write the states of the step to `words`, from index `begin` on. Return their layout."""
        layout = StateWords(begin, len(self._now.source))
        layout.write(words, self._now)
        return layout

    def write_dummy(self, words: Ints, layout: StateWords) -> None:
        """Write the states of a step of padding."""
        self._now = _padding(layout.chunks, self._scratch)
        layout.write(words, self._now)


def _padding(count: int, scratch: int) -> StateRows[Ints]:
    """Return the states of `count` padding chunks. Each is the first token of the row `scratch`, so
    that no matrix is written, and all write the same values to the other states of the row."""

    def all_of(value: int) -> Ints:
        return np.full(count, value, np.int32)

    return StateRows(
        source=all_of(scratch),
        base=all_of(0),
        target=all_of(scratch),
        keep=all_of(1),
        save=all_of(-1),
        save_after=all_of(0),
    )


def _columns(states: StateRows[Ints]) -> tuple[Ints, ...]:
    return tuple(getattr(states, name) for name in _COLUMNS)
