"""The tower of an image model: normalization, vision transformer, projector, and the arrangement of
the rows of several tiles."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.media.tiles import Grid, Normalization, TileLayout
from penstock.models.towers.axial_rope import AxialRope
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.position_grids import PositionGrids, PositionScheme
from penstock.models.towers.projector import Projector, ProjectorSpec, ProjectorWeights
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import Floats, TowerTensors, WeightType, find_root
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_tower import PatchRows, RowSource, TowerStates, VisionTower
from penstock.models.towers.vision_weights import VisionNames, VisionWeights
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")

_IMAGE: Final = frozenset[MediaKind]({"image"})


class Arrangement(Protocol):
    """Arranges the projected rows of an item's tiles in the order of its tokens."""

    def arrange(
        self, ops: Ops[Any], rows: Any, separator: Any, layout: TileLayout, kind: MediaKind
    ) -> Any:
        """Return the rows of the item.

        - `rows`: [N, W], the rows of all tiles in order.
        - `separator`: [1, W], a learned row such as the end of a line; None if the model has none.
        """


@dataclass(frozen=True, slots=True)
class ImageTowerSpec:
    """The configuration of an image tower, a `TowerSpec`.

    - `features`: the layers whose results are projected, one after another in each row; the last
      layer of `vision` and its taps. Empty: the last layer.
    - `keeps_class_token`: the projector also gets the rows of class tokens.
    - `most_patches`: the most patches of a tile.
    - `most_tiles`: the most tiles of an item.
    - `separator`: the name of the tensor with the learned row; "" if the model has none.
    - `separator_roots`: the prefixes that may precede it.
    """

    vision: VisionSpec
    names: VisionNames
    projector: ProjectorSpec
    normalization: Normalization
    most_patches: int
    most_tiles: int = 1
    kinds: frozenset[MediaKind] = _IMAGE
    scheme: PositionScheme = "fixed"
    rope: AxialRope | None = None
    features: tuple[int, ...] = ()
    keeps_class_token: bool = False
    arrangement: Arrangement | None = None
    separator: str = ""
    separator_roots: tuple[str, ...] = ("",)

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        together = max(self.most_patches + 1, self.vision.piece_rows)
        rows = self.most_tiles * (self.most_patches // self.projector.merge**2 + 1)
        merged = together * (self.projector.columns // self.projector.merge**2)
        projected = rows * self.projector.width * 3 + 3 * merged
        return self.vision.scratch_bytes(together) + 4 * projected

    def check(self, where: str) -> None:
        """Check the sizes. Raises ModelError that starts with `where`."""
        self.vision.check(where)
        self.projector.check(where)

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> OpenImageTower:
        """See TowerSpec."""
        return OpenImageTower(self, checkpoint, dtype)


class OpenImageTower:
    """An image tower whose tensors have been found and checked, a `LoadedTower`."""

    def __init__(self, spec: ImageTowerSpec, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._spec = spec
        self._vision = VisionWeights(checkpoint, spec.names, spec.vision, dtype)
        self._projector = ProjectorWeights(checkpoint, spec.projector, dtype)
        self._separator: TowerTensors | None = None
        if spec.separator:
            root = find_root(spec.separator_roots, spec.separator, checkpoint)
            shapes = {spec.separator: (spec.projector.width,)}
            self._separator = TowerTensors(checkpoint, root, shapes, "f32")

    @property
    def weight_bytes(self) -> int:
        """See LoadedTower."""
        return self._vision.size_bytes + self._projector.size_bytes

    def build(self, ops: Ops[Any]) -> ImageTower[Any]:
        """See LoadedTower."""
        spec = self._spec
        separator = None
        if self._separator is not None:
            separator = self._separator.vector(spec.separator)[None]
        vision = VisionTower(spec.vision, self._vision, ops)
        projector = Projector(spec.projector, self._projector, ops)
        return ImageTower(spec, vision, projector, self._positions(), separator)

    def _positions(self) -> PositionGrids | None:
        table = self._vision.positions()
        if table is None:
            return None
        patches = table[1:] if self._spec.vision.class_token else table
        return PositionGrids(patches, self._spec.scheme)


class ImageTower(Generic[Tensor]):
    """An image tower whose weights are packed for one kernel backend, a `Tower`."""

    def __init__(
        self,
        spec: ImageTowerSpec,
        vision: VisionTower[Tensor],
        projector: Projector[Tensor],
        positions: PositionGrids | None,
        separator: Floats | None,
    ) -> None:
        self._spec = spec
        self._vision = vision
        self._projector = projector
        self._positions = positions
        self._separator = separator

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """See Tower."""
        spec, layout = self._spec, TileLayout.of(media)
        patches, start = media.array(), 0
        parts = []
        for grids in _batches(layout.grids, spec.vision.piece_rows):
            count = sum(rows * columns for rows, columns in grids)
            given = self._rows(spec.normalization.rows(patches[start : start + count]), grids)
            states = yield from self._vision.states(ops, given, budget)
            features = self._features(ops, states, grids)
            parts.append((yield from self._projector.project(ops, features, grids, budget)))
            start += count
        rows: Any = parts[0] if len(parts) == 1 else _stacked(ops, parts)
        if spec.arrangement is not None:
            separator = None if self._separator is None else ops.constant(self._separator)
            rows = spec.arrangement.arrange(ops, rows, separator, layout, media.kind)
        return EncodedMedia(rows)

    def _rows(self, patches: RowSource, grids: Sequence[Grid]) -> PatchRows:
        """Return the input of the transformer for tiles that are computed together."""
        positions = rope = None
        if self._positions is not None:
            positions = np.concatenate([self._positions.rows(grid) for grid in grids])
        if self._spec.rope is not None:
            rope = np.concatenate([self._spec.rope.table(grid) for grid in grids])
        groups = (tuple(rows * columns for rows, columns in grids),)
        return PatchRows(patches, groups, positions, rope)

    def _features(
        self, ops: Ops[Tensor], states: TowerStates[Tensor], grids: Sequence[Grid]
    ) -> Any:
        """Return the projector's input: the chosen layers, usually without class tokens."""
        spec = self._spec
        last = spec.vision.layers - 1
        by_layer = dict(zip(sorted(spec.vision.taps), states.taps, strict=True))
        chosen: list[Any] = [
            states.last if i == last else by_layer[i] for i in spec.features or (last,)
        ]
        if spec.vision.class_token and not spec.keeps_class_token:
            index = ops.constant(_patch_rows(grids))
            chosen = [ops.gather_rows(one, index) for one in chosen]
        if len(chosen) == 1:
            return chosen[0]
        width, first = spec.vision.hidden_size, chosen[0]
        beside: Any = ops.constant(np.empty((len(first), width * len(chosen)), np.float32))
        for number, one in enumerate(chosen):
            beside[:, number * width : (number + 1) * width] = one
        return beside


def _batches(grids: Sequence[Grid], most_rows: int) -> Iterator[list[Grid]]:
    """Yield the tiles that are computed together: one, or several small ones."""
    batch: list[Grid] = []
    total = 0
    for rows, columns in grids:
        if batch and total + rows * columns > most_rows:
            yield batch
            batch, total = [], 0
        batch.append((rows, columns))
        total += rows * columns
    if batch:
        yield batch


def _patch_rows(grids: Sequence[Grid]) -> Any:
    """Return the indices of the rows that are not class tokens."""
    lengths = np.array([rows * columns for rows, columns in grids])
    tile = np.repeat(np.arange(len(lengths)), lengths)
    return (np.arange(lengths.sum()) + tile + 1).astype(np.int32)


def _stacked(ops: Ops[Any], parts: Sequence[Any]) -> Any:
    """Return the rows of all parts in one tensor."""
    width = parts[0].shape[1]
    result = ops.constant(np.empty((sum(map(len, parts)), width), np.float32))
    start = 0
    for part in parts:
        result[start : start + len(part)] = part
        start += len(part)
    return result
