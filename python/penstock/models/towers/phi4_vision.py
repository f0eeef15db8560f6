"""The image tower of Phi-4-multimodal: a vision transformer over the tiles of an image and over the
whole image, squares of patches, learned rows at the ends of lines, and a projection."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.media.phi4_images import HdGrid
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.media.tiles import Grid, Normalization, TileLayout
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.position_grids import PositionGrids
from penstock.models.towers.projector import Projector, ProjectorSpec, ProjectorWeights
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import Floats, TowerTensors, WeightType, find_root
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_tower import PatchRows, VisionTower
from penstock.models.towers.vision_weights import VisionNames, VisionWeights
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")
Pixels = npt.NDArray[np.uint8]

_LINE_END: Final = "sub_img_feature_extensor"
_DIVIDER: Final = "global_img_feature_extensor"
_CUBIC: Final = -0.75


@dataclass(frozen=True, slots=True)
class Phi4ImageSpec:
    """A TowerSpec.

    - `across`: patches on a side of a tile, an even number.
    - `most_tiles`: the most tiles of an image.
    """

    vision: VisionSpec
    names: VisionNames
    projector: ProjectorSpec
    normalization: Normalization
    across: int
    most_tiles: int

    @property
    def kinds(self) -> frozenset[MediaKind]:
        return frozenset[MediaKind]({"image"})

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        patches = self.across**2
        rows = (self.most_tiles + 1) * (patches // 4 + self.across)
        kept = rows * (2 * self.vision.hidden_size + self.projector.width * 3)
        pixels = 2 * (self.most_tiles + 1) * patches * self.vision.patch_columns
        return self.vision.scratch_bytes(patches) + 4 * kept + pixels

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        self.vision.check(where)
        self.projector.check(where)

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> LoadedPhi4Images:
        """Find and check the tensors; see TowerSpec."""
        root = find_root(self.projector.roots, _LINE_END, checkpoint)
        width = self.vision.hidden_size
        shapes = {_LINE_END: (1, 1, 1, width), _DIVIDER: (1, 1, width)}
        return LoadedPhi4Images(
            self,
            VisionWeights(checkpoint, self.names, self.vision, dtype),
            ProjectorWeights(checkpoint, self.projector, dtype),
            TowerTensors(checkpoint, root, shapes, "f32"),
        )


@dataclass(frozen=True, slots=True)
class LoadedPhi4Images:
    """The tensors of the tower. `learned`: the rows that are no patches."""

    spec: Phi4ImageSpec
    vision: VisionWeights
    projector: ProjectorWeights
    learned: TowerTensors

    @property
    def weight_bytes(self) -> int:
        return self.vision.size_bytes + self.projector.size_bytes

    def build(self, ops: Ops[Any]) -> Phi4ImageTower[Any]:
        return Phi4ImageTower(self, ops)


class Phi4ImageTower(Generic[Tensor]):
    """The tower whose weights are packed for one kernel backend."""

    def __init__(self, loaded: LoadedPhi4Images, ops: Ops[Tensor]) -> None:
        self._spec = spec = loaded.spec
        self._vision = VisionTower(spec.vision, loaded.vision, ops)
        self._projector = Projector(spec.projector, loaded.projector, ops)
        table = loaded.vision.positions()
        assert table is not None
        self._first_position = table[:1]
        self._positions = PositionGrids(table, "buckets")
        self._learned = np.stack([loaded.learned.vector(name) for name in (_LINE_END, _DIVIDER)])

    def encode(
        self, ops: Ops[Any], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Any]]:
        spec, grid = self._spec, HdGrid(*TileLayout.of(media).extra)
        across, half = spec.across, spec.across // 2
        tiles = media.array().reshape(grid.rows * grid.columns, across**2, -1)
        whole = whole_image(tiles, grid, across, spec.normalization)
        squares: Any = ops.constant(
            np.empty((2 + (len(tiles) + 1) * half**2, spec.vision.hidden_size), np.float32)
        )
        squares[:2] = ops.constant(self._learned)
        first = 2
        for number in range(-1, len(tiles)):
            shown = (across, across) if number < 0 else _shown(grid, number, across)
            patches = whole if number < 0 else spec.normalization.apply(tiles[number])
            found = yield from self._squares(ops, patches, shown, budget)
            squares[first : first + len(found)] = found
            first += half**2
        order = ops.constant(_order(grid, half))
        rows = ops.gather_rows(squares, order)
        projected = yield from self._projector.project(ops, rows, [(1, len(rows))], budget)
        return EncodedMedia(projected)

    def _squares(
        self, ops: Ops[Any], patches: Floats, shown: Grid, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        """Return the means of the squares of a tile with a patch that shows the image, row by row.

        `shown`: the rows and columns of patches that show the image. The others of these squares
        attend to them, but nothing attends to the others.
        """
        order, kept = _patch_order(shown, self._spec.across)
        table = self._positions.rows(shown)
        positions = np.repeat(self._first_position, len(order), axis=0)
        positions[: len(table)] = table
        groups = _groups(len(table), len(order))
        given = PatchRows(patches[order], (groups,), positions, seen=(0,) * len(groups))
        states = yield from self._vision.states(ops, given, budget)
        squares = ops.gather_rows(states.last, ops.constant(kept[0]))
        for corner in kept[1:]:
            squares = squares + ops.gather_rows(states.last, ops.constant(corner))
        return squares * 0.25


def _shown(grid: HdGrid, tile: int, across: int) -> Grid:
    """Return the rows and columns of patches of a tile that show the image."""
    row, column = divmod(tile, grid.columns)
    return min(across, grid.high - row * across), min(across, grid.wide - column * across)


def _groups(shown: int, count: int) -> tuple[int, ...]:
    """Return the sizes of the groups of `count` patches: those that show the image, then others,
    which attend to the first group and are divided into groups that are not larger."""
    others = count - shown
    return (shown, *(min(shown, others - first) for first in range(0, others, shown)))


def _patch_order(shown: Grid, across: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the patches of a tile in the order in which they are computed: those that show the
    image, then the others of their squares. Also return the places of the four patches of each
    square in that order, [4, squares]."""
    high, wide = shown
    index = np.arange(across**2).reshape(across, across)[: high + high % 2, : wide + wide % 2]
    others = np.ones(index.shape, np.bool_)
    others[:high, :wide] = False
    order = np.concatenate([index[:high, :wide].reshape(-1), index[others]])
    place = np.empty(across**2, np.int32)
    place[order] = np.arange(len(order))
    corners = place[index].reshape(index.shape[0] // 2, 2, index.shape[1] // 2, 2)
    return order, np.ascontiguousarray(corners.transpose(1, 3, 0, 2).reshape(4, -1))


def _order(grid: HdGrid, half: int) -> npt.NDArray[np.int32]:
    """Return the order of the rows. They are: the end of a line, the divider, the squares of the
    whole image, then those of each tile, at multiples of `half`**2."""

    def lines(squares: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        ends = np.zeros((len(squares), 1), np.int64)
        return np.hstack([squares, ends]).reshape(-1)

    whole = 2 + np.arange(half**2).reshape(half, half)
    high, wide = grid.kept
    row, column = np.arange(high)[:, None], np.arange(wide)
    tile = row // half * grid.columns + column // half
    # A tile at the border has fewer squares in a row.
    columns = np.minimum(half, wide - column // half * half)
    squares = 2 + (tile + 1) * half**2 + row % half * columns + column % half
    return np.concatenate([lines(squares), [1], lines(whole)]).astype(np.int32)


def whole_image(tiles: Pixels, grid: HdGrid, across: int, normalization: Normalization) -> Floats:
    """Return the patches [across**2, pixels * 3] of the whole image, shrunk to one tile by cubic
    interpolation without averaging. `tiles`: [tiles, across**2, patch * patch * 3]."""
    patch = round((tiles.shape[2] // 3) ** 0.5)
    side = across * patch
    image = tiles.reshape(grid.rows, grid.columns, across, across, patch, patch, 3)
    image = image.transpose(0, 2, 4, 1, 3, 5, 6).reshape(grid.rows * side, grid.columns * side, 3)
    rows, row_shares = _cubic_taps(image.shape[0], side)
    columns, column_shares = _cubic_taps(image.shape[1], side)
    shrunk = np.zeros((side, image.shape[1], 3), np.float32)
    for tap in range(4):
        shrunk += normalization.apply(image[rows[:, tap]]) * row_shares[:, tap, None, None]
    small = np.zeros((side, side, 3), np.float32)
    for tap in range(4):
        small += shrunk[:, columns[:, tap]] * column_shares[:, tap, None]
    cut = small.reshape(across, patch, across, patch, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(cut.reshape(across**2, -1))


def _cubic_taps(size: int, target: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the four samples of each of `target` positions, and their shares, [target, 4] each.
    Samples repeat at the border."""
    center = (np.arange(target) + 0.5) * (size / target) - 0.5
    index = np.floor(center).astype(np.int64)[:, None] + np.arange(-1, 3)
    distance = np.abs(center[:, None] - index)
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
    far = _CUBIC * (((distance - 5) * distance + 8) * distance - 4)
    shares = np.where(distance <= 1, near, far).astype(np.float32)
    return np.clip(index, 0, size - 1), shares
