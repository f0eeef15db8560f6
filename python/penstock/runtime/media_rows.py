"""The media of the rows of the persistent batch: the tokens whose embeddings come from encoded
media, and positions that differ from 0, 1, 2, ...

Cache slots and attention use the index of a token in its sequence, here its cache position. RoPE
uses its position, which media with multi-dimensional positions shift.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.kernels.step_inputs import MediaRows
from penstock.models.towers.tower import EncodedMedia
from penstock.scheduler.types import Admit, Chunk, MediaRun

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]

AXES: Final = 3  # time, height, width


@dataclass(frozen=True, slots=True)
class _RowMedia:
    """The media of one row.

    `runs`: the tokens with encoded rows, and the encoded item of each run.
    `positions`: [3, prompt tokens], None for 0, 1, 2, ...
    """

    runs: tuple[tuple[MediaRun, EncodedMedia[Floats]], ...]
    positions: Ints | None


def _float32_zeros(shape: tuple[int, int]) -> Floats:
    return np.zeros(shape, np.float32)


class MediaTable:
    """The media of `max_num_seqs` rows, and the buffers for the encoded rows of a step.

    `encoded`: the encoded items, by digest. A row holds its items until it is released.
    `step_tokens`: most tokens of a step.
    `width`: W, numbers per embedding.
    `has_axes`: tokens have three positions; if not, only the first one is used.
    `zeros`: makes a buffer of the shape [step_tokens, width], of the kind of the encoded rows.
    """

    def __init__(
        self,
        encoded: Mapping[bytes, EncodedMedia[Floats]],
        max_num_seqs: int,
        step_tokens: int,
        width: int,
        has_axes: bool = True,
        zeros: Callable[[tuple[int, int]], Any] = _float32_zeros,
    ) -> None:
        self._encoded = encoded
        self._has_axes = has_axes
        self._zeros = zeros
        self._shape = (step_tokens, width)
        self._buffers = [zeros(self._shape)]
        self._rows: dict[int, _RowMedia] = {}
        # From `_ends` on, the tokens of a row have embeddings of the vocabulary, and their
        # positions are their cache positions plus `_shifts`.
        self._ends = np.zeros(max_num_seqs, np.int32)
        self._shifts = np.zeros(max_num_seqs, np.int32)

    def admit(self, admit: Admit) -> None:
        """Store the media of a row, whose items must be encoded. A preempted sequence is admitted
        again with the same media."""
        self.place(admit.row, admit.media, admit.rope_positions)

    def place(self, row: int, media: Sequence[MediaRun], rope_positions: bytes) -> None:
        """Store the media of a row; see `Admit`."""
        self.release(row)
        if not media and not rope_positions:
            return
        positions, shift = None, 0
        end = max((run.start + run.length for run in media), default=0)
        if rope_positions:
            positions = np.frombuffer(rope_positions, np.int32).reshape(AXES, -1)
            shift = int(positions.max()) + 1 - positions.shape[1]
            differs = (positions != np.arange(positions.shape[1]) + shift).any(axis=0)
            end = max(end, 1 + int(np.flatnonzero(differs).max(initial=-1)))
        runs = tuple((run, self._encoded[run.digest]) for run in media)
        self._rows[row] = _RowMedia(runs, positions)
        self._ends[row], self._shifts[row] = end, shift

    def release(self, row: int) -> None:
        """Forget the media of a row, if it has any."""
        if self._rows.pop(row, None) is not None:
            self._ends[row] = self._shifts[row] = 0

    def are_plain(self, rows: Index, starts: Ints) -> bool:
        """Return whether all tokens from the cache positions `starts` of `rows` on have embeddings
        of the vocabulary, and positions that `shifted` returns."""
        return not self._rows or bool((starts >= self._ends[rows]).all())

    def shifted(self, rows: Index, positions: Ints) -> Ints:
        """Return the positions of tokens for which `are_plain` is true. `rows`, `positions`: [T],
        the row and the cache position of each token."""
        return positions + self._shifts[rows] if self._rows else positions

    def times(self, rows: Index, positions: Ints) -> Ints:
        """Return the first of the three positions of tokens, or the only one. `rows`, `positions`:
        see `shifted`."""
        times = self.shifted(rows, positions)
        for row, media in self._rows.items():
            if media.positions is not None:
                own = np.flatnonzero((rows == row) & (positions < media.positions.shape[1]))
                times[own] = media.positions[0, positions[own]]
        return times

    def inputs(
        self, chunks: Sequence[Chunk], shifted: Ints, positions: Ints, query_starts: Ints
    ) -> tuple[Ints, MediaRows[Ints] | None]:
        """Return the positions of the tokens of a step, and its media: None if no token has media
        or three different positions. The media are valid until the next call.

        `shifted`: [T], the result of `shifted` for all tokens.
        `positions`: [T], the cache position of each token.
        `query_starts`: [R + 1], the first token of each chunk.
        """
        axes = np.tile(shifted, (AXES, 1))
        index = np.full(len(positions), -1, np.int32)
        visible = positions + np.int32(1)
        taken = 0
        has_whole = False
        for chunk, first in zip(chunks, query_starts.tolist(), strict=False):
            media = self._rows.get(chunk.row)
            end = chunk.start + chunk.length
            if media is None or chunk.start >= self._ends[chunk.row]:
                continue
            offset = first - chunk.start  # from a cache position to the index of the token
            if media.positions is not None:
                known = min(end, media.positions.shape[1])
                axes[:, first : known + offset] = media.positions[:, chunk.start : known]
            for run, item in media.runs:
                begin, after = max(run.start, chunk.start), min(run.start + run.length, end)
                if begin >= after:
                    continue
                count = after - begin
                tokens = slice(begin + offset, after + offset)
                index[tokens] = np.arange(taken, taken + count)
                self._copy(item, run.row + begin - run.start, taken, count)
                taken += count
                if run.whole:
                    has_whole = True
                    visible[tokens] = run.start + run.length
        differs = self._has_axes and bool((axes != axes[0]).any())
        if not taken and not differs:
            return axes[0], None
        return axes[0], self._media_rows(index, axes, visible if has_whole else None)

    def _media_rows(self, index: Ints, axes: Ints, visible: Ints | None) -> MediaRows[Ints]:
        rows, *deep = self._buffers
        return MediaRows(
            index=index,
            rows=rows,
            deep=tuple(deep),
            rope_positions=tuple(axes) if self._has_axes else (),
            rope_rows=np.arange(len(index), dtype=np.int32) if self._has_axes else None,
            visible=visible,
        )

    def _copy(self, item: EncodedMedia[Floats], row: int, to: int, count: int) -> None:
        """Copy rows of an item to the buffers. An item without DeepStack rows adds zeros."""
        while len(self._buffers) < 1 + len(item.deep):
            self._buffers.append(self._zeros(self._shape))
        for buffer, rows in zip(self._buffers, (item.rows, *item.deep), strict=False):
            buffer[to : to + count] = rows[row : row + count]
        for buffer in self._buffers[1 + len(item.deep) :]:
            buffer[to : to + count] = 0.0
