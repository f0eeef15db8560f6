"""Arranges the rows of tiles of a canvas as one image (LLaVA-NeXT's "anyres")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.media.anyres import AnyresRule, image_size
from penstock.models.media.prepared import MediaKind
from penstock.models.media.tiles import Grid, TileLayout


@dataclass(frozen=True, slots=True)
class AnyresArrangement:
    """The rows of the whole image, then the grid of the tiles with a learned row after each line.
    Frames of videos are shrunk to `video_grid` each, and a learned row follows the last."""

    rule: AnyresRule
    video_grid: Grid = (0, 0)

    def arrange(
        self, ops: Ops[Any], rows: Any, separator: Any, layout: TileLayout, kind: MediaKind
    ) -> Any:
        """See Arrangement."""
        if kind == "video":
            return self._video(ops, rows, separator, len(layout.grids))
        if len(layout.grids) == 1:
            return _stacked(ops, rows, separator)
        found = self.rule.of(image_size(layout.extra))
        high, wide = self.rule.grid
        base = high * wide
        index: npt.NDArray[np.int64] = np.arange(base, len(rows)).reshape(
            found.whole[0] // high, found.whole[1] // wide, high, wide
        )
        index = index.transpose(0, 2, 1, 3).reshape(found.whole)
        index = index[slice(*found.lines), slice(*found.columns)]
        if found.shrunk is not None:
            kept = ops.gather_rows(rows, ops.constant(index.reshape(-1).astype(np.int32)))
            shrunk = bilinear(ops, kept, 1, index.shape, found.shrunk)
            rows = _stacked(ops, rows[:base], shrunk)
            index = base + np.arange(len(shrunk)).reshape(found.shrunk)
        ends = np.full((len(index), 1), len(rows))
        order = np.concatenate((np.arange(base), np.hstack((index, ends)).reshape(-1)))
        together = _stacked(ops, rows, separator)
        return ops.gather_rows(together, ops.constant(order.astype(np.int32)))

    def _video(self, ops: Ops[Any], rows: Any, separator: Any, frames: int) -> Any:
        shrunk = bilinear(ops, rows, frames, self.rule.grid, self.video_grid)
        return _stacked(ops, shrunk, separator)


def bilinear(ops: Ops[Any], rows: Any, images: int, grid: tuple[int, ...], target: Grid) -> Any:
    """Interpolate the rows of several images from a grid to another grid, without averaging."""
    high, wide = grid
    lines, columns = _weights(high, target[0]), _weights(wide, target[1])
    total: Any = None
    firsts = np.arange(images)[:, None, None] * high * wide
    for line, line_share in lines:
        for column, column_share in columns:
            index = firsts + line[:, None] * wide + column
            shares = np.broadcast_to(line_share[:, None] * column_share, index.shape)
            gathered = ops.gather_rows(rows, ops.constant(index.reshape(-1).astype(np.int32)))
            weighted = gathered * ops.constant(shares.reshape(-1, 1).astype(np.float32))
            total = weighted if total is None else total + weighted
    return total


_Side = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]


def _weights(side: int, target: int) -> tuple[_Side, _Side]:
    """Return the two neighbours of each of `target` positions and their shares."""
    scale = np.float32(side / target)
    center = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    center = np.maximum(center, np.float32(0))
    low = np.minimum(center.astype(np.int64), side - 1)
    share = (center - low.astype(np.float32)).astype(np.float32)
    return (low, 1 - share), (np.minimum(low + 1, side - 1), share)


def _stacked(ops: Ops[Any], first: Any, second: Any) -> Any:
    count = len(first)
    result = ops.constant(np.empty((count + len(second), first.shape[1]), np.float32))
    result[:count], result[count:] = first, second
    return result
