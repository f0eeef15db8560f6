"""Computes the positions (time, height, width) of the tokens of a prompt with images and videos, as
the Qwen-VL models count them.

Text counts up in all three components. The tokens of an image or of a group of frames form a grid:
they have the position of the grid plus their row and column, and the text after them continues from
the position of the grid plus its larger side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Grid:
    """The tokens of an image or video that lie in one piece in a prompt.

    - `start`: index of the first token in the prompt.
    - `times`: the component of time of each group of frames, relative to the first; (0,) for an
      image.
    - `rows`, `columns`: the tokens of one group.
    """

    start: int
    times: tuple[int, ...]
    rows: int
    columns: int

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.times) * self.rows * self.columns


def grid_positions(num_tokens: int, grids: Iterable[Grid]) -> npt.NDArray[np.int32]:
    """Return the positions [3, T] of a prompt of `num_tokens` tokens, with `grids` in ascending
    order."""
    positions = np.empty((3, num_tokens), np.int32)
    done, position = 0, 0
    for grid in grids:
        position = _count_text(positions, done, grid.start, position)
        done = grid.start + grid.tokens
        inside = np.meshgrid(
            np.asarray(grid.times), np.arange(grid.rows), np.arange(grid.columns), indexing="ij"
        )
        positions[:, grid.start : done] = np.stack(inside).reshape(3, -1) + position
        position += max(grid.rows, grid.columns)
    _count_text(positions, done, num_tokens, position)
    return positions


def _count_text(positions: npt.NDArray[np.int32], start: int, end: int, position: int) -> int:
    """Write the positions of the text tokens from `start` to `end`, the first of which is
    `position`. Return the position of the token after them."""
    positions[:, start:end] = np.arange(position, position + end - start)
    return position + end - start
