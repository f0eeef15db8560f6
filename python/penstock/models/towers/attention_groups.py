"""Divides the rows of a tower into attention groups, whose rows attend to each other, and gives
the inputs of pieces, which are computed one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import CacheDtype, LayerCache, StepInputs

Tensor = TypeVar("Tensor")
Ints = npt.NDArray[np.int32]

BLOCK_ROWS: Final = 64
"""The rows of a block of the key-value cache: a tile of the attention kernels."""


@dataclass(frozen=True, slots=True)
class Piece(Generic[Tensor]):
    """Successive rows of a tower, and the step inputs with which they are computed.

    A piece may begin and end inside a group: it stores its own keys and values, and its queries
    attend to all of the group, whose other keys and values must have been stored before.
    """

    rows: slice
    inputs: StepInputs[Tensor]


class AttentionGroups(Generic[Tensor]):
    """A division of the rows of a tower into groups whose rows attend to each other.

    - `groups`: the number of rows of each group, in order.
    - `positions`: the row of the rope table for each row of the tower.
    - `seen`: for each group, the group to whose rows it attends, which must not be smaller; None:
      its own.
    - `longest`: the rows of the longest group.
    """

    def __init__(
        self,
        ops: Ops[Tensor],
        groups: Sequence[int],
        positions: Ints,
        seen: Sequence[int] | None = None,
    ) -> None:
        lengths = np.asarray(groups, np.int64)
        if not len(lengths) or lengths.min() < 1 or lengths.sum() != len(positions):
            raise ModelError(
                f"attention groups {tuple(groups)} do not divide {len(positions)} rows"
            )
        keys = np.arange(len(lengths)) if seen is None else np.asarray(seen, np.int64)
        blocks = -(-lengths // BLOCK_ROWS)
        first_block = np.cumsum(blocks) - blocks
        tables = first_block[keys, None] + np.arange(blocks.max())
        self.longest = int(lengths.max())
        self._ops = ops
        self._seen_lengths = lengths[keys]
        self._positions = positions
        self._starts = np.cumsum(lengths) - lengths
        self._group_of_row = np.repeat(np.arange(len(lengths)), lengths)
        self._slots = np.arange(len(positions)) + np.repeat(
            first_block * BLOCK_ROWS - self._starts, lengths
        )
        self._tables = np.where(np.arange(blocks.max()) < blocks[keys, None], tables, 0)
        self._pieces: dict[tuple[int, int], Piece[Tensor]] = {}

    def piece(self, rows: slice) -> Piece[Tensor]:
        """Return the piece of successive `rows`. Layers share it, as they often have equal
        pieces."""
        key = (rows.start, rows.stop)
        if key not in self._pieces:
            self._pieces[key] = Piece(rows, self._inputs(rows))
        return self._pieces[key]

    def _inputs(self, rows: slice) -> StepInputs[Tensor]:
        first, last = self._group_of_row[[rows.start, rows.stop - 1]]
        within = slice(int(first), int(last) + 1)
        query_starts = np.append(np.maximum(self._starts[within], rows.start), rows.stop)
        return StepInputs(
            tokens=self._tensor(np.zeros(rows.stop - rows.start)),
            positions=self._tensor(self._positions[rows]),
            slots=self._tensor(self._slots[rows]),
            query_starts=self._tensor(query_starts - rows.start),
            context_lens=self._tensor(self._seen_lengths[within]),
            block_tables=self._tensor(self._tables[within]),
            sample_rows=self._tensor(np.zeros(0)),
        )

    def _tensor(self, values: npt.NDArray[Any]) -> Tensor:
        return self._ops.constant(np.ascontiguousarray(values, np.int32))


def empty_cache(
    ops: Ops[Tensor],
    groups: Sequence[Sequence[int]],
    heads: int,
    head_dim: int,
    dtype: CacheDtype = "f32",
) -> LayerCache[Tensor]:
    """Return a key-value cache that holds one layer for each of several divisions into groups."""
    blocks = max(sum(-(-length // BLOCK_ROWS) for length in division) for division in groups)
    return ops.new_cache((blocks, heads, head_dim, BLOCK_ROWS), dtype)
