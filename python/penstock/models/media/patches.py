"""Orders the patches of frames as towers that merge squares of patches take them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def merged_cells(rows: int, columns: int, merge: int) -> npt.NDArray[np.int64]:
    """Return the row and column of each of `rows` x `columns` patches, [N, 2], with the `merge` x
    `merge` patches of a token next to each other."""
    row, column = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    cells = np.stack([row, column], axis=-1)
    blocks = cells.reshape(rows // merge, merge, columns // merge, merge, 2)
    ordered: npt.NDArray[np.int64] = blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)
    return ordered
