"""The places of the windows that the rows of a transcription attend to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import StepInputs

Ints = npt.NDArray[np.int32]


class WindowPlaces:
    """A place of `blocks` cache blocks per row for the keys and values of a window. Rows with the
    same window share a place, and a window stays until its place is needed, so that repeated
    decoding of a window projects it once.

    - `write(digest, table)`: writes the keys and values of a window to the blocks `table: [blocks]`
      of all layers, and returns its number of positions. Called if no place has the window.
    """

    def __init__(self, max_rows: int, blocks: int, write: Callable[[bytes, Ints], int]) -> None:
        self._write = write
        self._tables = np.arange(max_rows * blocks, dtype=np.int32).reshape(max_rows, blocks)
        self._lengths = np.zeros(max_rows, np.int32)
        self._places: OrderedDict[bytes, int] = OrderedDict()  # longest unused first
        self._free = list(range(max_rows))
        self._held: dict[int, bytes] = {}  # row -> digest

    def admit(self, row: int, digest: bytes) -> None:
        """Give a window to a row."""
        self.release(row)
        if digest not in self._places:
            place = self._take_place()
            self._lengths[place] = self._write(digest, self._tables[place])
            self._places[digest] = place
        self._places.move_to_end(digest)
        self._held[row] = digest

    def release(self, row: int) -> None:
        """Take the window from a row, if it has one."""
        self._held.pop(row, None)

    def inputs(self, rows: Sequence[int], step: StepInputs[Ints]) -> StepInputs[Ints]:
        """Return the inputs of cross-attention for the `rows` of a step, in the order of its
        chunks."""
        places = [self._places[self._held[row]] for row in rows]
        tables = np.ascontiguousarray(self._tables[places])
        return replace(step, context_lens=self._lengths[places], block_tables=tables)

    def _take_place(self) -> int:
        """Return a free place, or the one of the window that has been unused for longest."""
        if self._free:
            return self._free.pop()
        held = set(self._held.values())
        unused = next(digest for digest in self._places if digest not in held)
        return self._places.pop(unused)
