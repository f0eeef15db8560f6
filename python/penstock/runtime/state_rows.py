"""The recurrent states of the rows between steps, and the slots that a step reads and writes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.kernels.recurrent_state import STATE_TILE, StateRows
from penstock.scheduler.types import Chunk

Ints = npt.NDArray[np.int32]
Index = npt.NDArray[np.intp]


class StateTable:
    """Knows how many tokens the matrix of each of `max_num_seqs` rows contains. The state of a row
    is in the slot with its number, and snapshots are in the slots after all rows."""

    def __init__(self, max_num_seqs: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._base = np.zeros(max_num_seqs, np.int32)
        self._nothing = np.full(max_num_seqs, -1, np.int32)

    def inputs(self, chunks: tuple[Chunk, ...], rows: Index, starts: Ints) -> StateRows[Ints]:
        """Return the states of a step, and count its tokens. Called once per step, in the order of
        the steps.

        `rows: [R]`: the row of each chunk. `starts: [R]`: its first position.
        """
        target = rows.astype(np.int32)
        keep = np.array([chunk.length for chunk in chunks], np.int32)
        is_first = starts == 0
        source = np.where(is_first, np.int32(-1), target)
        base = np.where(is_first, np.int32(0), self._base[rows])
        save, save_after = self._nothing[: len(chunks)].copy(), np.zeros(len(chunks), np.int32)
        for index, chunk in enumerate(chunks):
            use = chunk.state
            if use.restore is not None:
                source[index] = self._max_num_seqs + use.restore
                base[index] = chunk.start
            if use.save is not None:
                save[index] = self._max_num_seqs + use.save
                save_after[index] = use.save_after
        self._base[rows] = (starts + keep) // STATE_TILE * STATE_TILE
        return StateRows(source, base, target, keep, save, save_after)
