"""Divides the rows of a tower into attention groups, whose rows attend to each other, and into
pieces, which are computed one after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.kernels.ops_interface import CacheDtype, LayerCache, Ops, StepInputs

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


def pieces_of(
    ops: Ops[Tensor], groups: Sequence[int], piece_rows: int, positions: Ints
) -> list[Piece[Tensor]]:
    """Return the pieces of at most `piece_rows` rows.

    - `groups`: the number of rows of each attention group, in order.
    - `positions`: the row of the rope table for each row of the tower.
    """
    lengths = np.asarray(groups, np.int64)
    if not len(lengths) or lengths.min() < 1 or lengths.sum() != len(positions):
        raise ModelError(f"attention groups {tuple(groups)} do not divide {len(positions)} rows")
    ends = np.cumsum(lengths)
    starts = ends - lengths
    blocks = -(-lengths // BLOCK_ROWS)
    first_block = np.cumsum(blocks) - blocks
    group_of_row = np.repeat(np.arange(len(lengths)), lengths)
    slots = (
        np.arange(len(positions)) - starts[group_of_row] + first_block[group_of_row] * BLOCK_ROWS
    )
    tables = first_block[:, None] + np.arange(blocks.max())
    tables = np.where(np.arange(blocks.max()) < blocks[:, None], tables, 0)

    def tensor(values: npt.NDArray[Any]) -> Tensor:
        return ops.constant(np.ascontiguousarray(values, np.int32))

    pieces = []
    for start in range(0, len(positions), piece_rows):
        rows = slice(start, min(start + piece_rows, len(positions)))
        within = slice(int(group_of_row[start]), int(group_of_row[rows.stop - 1]) + 1)
        query_starts = np.append(np.maximum(starts[within], start), rows.stop) - start
        inputs = StepInputs(
            tokens=tensor(np.zeros(rows.stop - start)),
            positions=tensor(positions[rows]),
            slots=tensor(slots[rows]),
            query_starts=tensor(query_starts),
            context_lens=tensor(lengths[within]),
            block_tables=tensor(tables[within]),
            sample_rows=tensor(np.zeros(0)),
        )
        pieces.append(Piece(rows, inputs))
    return pieces


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
