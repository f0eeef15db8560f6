"""The vision tower of Gemma 4: a transformer that rotates by column and row, whose patches are
averaged by squares, standardized and projected; and the single layer of Gemma 4 Unified."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import Ops
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.media.tiles import Grid, Normalization, TileLayout
from penstock.models.towers.packed_layers import Norm, packed_norm
from penstock.models.towers.piece_budget import PieceBudget, most_rows
from penstock.models.towers.projector import square_order
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import Floats, TowerTensors, WeightType, find_root
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_tower import PatchRows, RowSource, VisionTower
from penstock.models.towers.vision_weights import TowerNorm, VisionNames, VisionWeights
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")

KINDS: Final = frozenset[MediaKind]({"image", "video"})
LAYER_NORM_EPS: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Gemma4Names:
    """The names of the tensors outside the transformer, complete. `deviation_bias` and
    `deviation_scale` are "" if the model does not standardize.

    - `roots`: the prefixes that may precede every name.
    """

    positions: str
    projection: str
    deviation_bias: str = ""
    deviation_scale: str = ""
    roots: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class Gemma4TowerSpec:
    """The configuration of the tower of Gemma 4, a `TowerSpec`.

    - `places`: the number of learned positions on each axis.
    - `pooling`: the patches on a side of the square that becomes one row.
    - `output_size`: the width of the language model.
    - `most_patches`: the patches of the largest tile.
    """

    vision: VisionSpec
    names: VisionNames
    others: Gemma4Names
    normalization: Normalization
    rope_theta: float
    places: int
    pooling: int
    output_size: int
    most_patches: int
    kinds: frozenset[MediaKind] = KINDS

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        rows = self.most_patches // self.pooling**2
        widths = 2 * self.vision.hidden_size + self.output_size
        return self.vision.scratch_bytes(self.most_patches) + 4 * rows * widths

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedGemma4Tower:
        """See TowerSpec."""
        return LoadedGemma4Tower(self, checkpoint, dtype)

    def rope(self, grid: Grid) -> Floats:
        """Return the RoPE table of the patches of a tile, [rows * columns, head_dim]. The first
        half of the angles is of the column, the second of the row."""
        half = self.vision.head_dim // 2
        exponents = np.arange(0, half, 2, dtype=np.float32) / np.float32(half)
        frequencies = (1.0 / np.float32(self.rope_theta) ** exponents).astype(np.float32)
        places = _places(grid).astype(np.float32)
        angles = (places[:, :, None] * frequencies).reshape(len(places), -1)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


class LoadedGemma4Tower:
    """A tower whose tensors have been checked. See LoadedTower."""

    def __init__(self, spec: Gemma4TowerSpec, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._spec = spec
        self._vision = VisionWeights(checkpoint, spec.names, spec.vision, dtype)
        width, others = spec.vision.hidden_size, spec.others
        shapes: dict[str, Shape] = {
            others.positions: (2, spec.places, width),
            f"{others.projection}.weight": (spec.output_size, width),
        }
        if others.deviation_bias:
            shapes |= dict.fromkeys((others.deviation_bias, others.deviation_scale), (width,))
        root = find_root(others.roots, others.positions, checkpoint)
        self._tensors = TowerTensors(checkpoint, root, shapes, dtype)

    @property
    def weight_bytes(self) -> int:
        """See LoadedTower."""
        return self._vision.size_bytes + self._tensors.size_bytes

    def build(self, ops: Ops[Any]) -> Gemma4Tower[Any]:
        """See LoadedTower."""
        spec = self._spec
        return Gemma4Tower(spec, VisionTower(spec.vision, self._vision, ops), self._tensors, ops)


class Gemma4Tower(Generic[Tensor]):
    """A tower whose weights are packed for one kernel backend. See Tower."""

    def __init__(
        self,
        spec: Gemma4TowerSpec,
        vision: VisionTower[Tensor],
        tensors: TowerTensors,
        ops: Ops[Tensor],
    ) -> None:
        self._spec = spec
        self._vision = vision
        width, others = spec.vision.hidden_size, spec.others
        self._positions = tensors.table(others.positions, 2 * spec.places).reshape(2, -1, width)
        bias, scale = np.zeros(width, np.float32), np.ones(width, np.float32)
        if others.deviation_bias:
            bias, scale = (
                tensors.vector(name) for name in (others.deviation_bias, others.deviation_scale)
            )
        # (x * sqrt(W) - bias) * scale
        self._factor: Any = ops.constant((scale * np.float32(width**0.5)).astype(np.float32))
        self._offset: Any = ops.constant((-bias * scale).astype(np.float32))
        ones = TowerNorm(np.ones(width, np.float32), None)
        self._norm: Norm[Tensor] = packed_norm(ops, ones, spec.vision.norm_eps)
        self._projection = ops.pack_linear(tensors.linear([others.projection], biased=False))

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """See Tower."""
        spec, layout, patches = self._spec, TileLayout.of(media), media.array()
        each = spec.pooling**2
        total = sum(rows * columns for rows, columns in layout.grids) // each
        result: Any = ops.constant(np.empty((total, spec.output_size), np.float32))
        first = done = 0
        for grid in layout.grids:
            count = grid[0] * grid[1]
            given = self._rows(spec.normalization.rows(patches[first : first + count]), grid)
            states = yield from self._vision.states(ops, given, budget)
            rows = self._pooled(ops, states.last, grid)
            result[done : done + count // each] = rows
            first, done = first + count, done + count // each
            yield
        return EncodedMedia(result)

    def _rows(self, patches: RowSource, grid: Grid) -> PatchRows:
        columns, rows = _places(grid).T
        learned = self._positions[0][columns] + self._positions[1][rows]
        return PatchRows(patches, ((len(patches),),), learned, self._spec.rope(grid))

    def _pooled(self, ops: Ops[Tensor], states: Tensor, grid: Grid) -> Tensor:
        """Return the rows of the language model for the states of a tile's patches."""
        order = square_order((grid,), self._spec.pooling)
        starts = np.arange(0, len(order) + 1, self._spec.pooling**2, dtype=np.int32)
        x: Any = ops.gather_rows(states, ops.constant(order))
        x = ops.mean_rows(x, ops.constant(starts)) * self._factor + self._offset
        return ops.linear(self._norm.apply(ops, x), self._projection)


@dataclass(frozen=True, slots=True)
class UnifiedNames:
    """The names of the tensors of Gemma 4 Unified: norms and linear layers without `.weight` and
    `.bias`, `positions` complete. `positions_shape`: "places first": [places, 2, W], or "axes
    first": [2, places, W]. `roots`: the prefixes that may precede every name."""

    first_norm: str
    dense: str
    second_norm: str
    positions: str
    third_norm: str
    projection: str
    positions_shape: Literal["places first", "axes first"] = "places first"
    roots: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class UnifiedTowerSpec:
    """The configuration of the layer that embeds patches, a `TowerSpec`.

    - `patch`: the side of a patch in pixels.
    - `hidden_size`: the width between the two linear layers.
    - `places`: the number of learned positions on each axis.
    - `channels_first`: the columns of the first layer are in the order (channel, row, column).
    """

    names: UnifiedNames
    normalization: Normalization
    patch: int
    hidden_size: int
    places: int
    output_size: int
    most_patches: int
    norm_eps: float
    channels_first: bool = False
    kinds: frozenset[MediaKind] = KINDS

    @property
    def columns(self) -> int:
        """The elements of a patch."""
        return 3 * self.patch**2

    @property
    def row_operations(self) -> int:
        """The operations of a patch."""
        return 2 * self.hidden_size * (self.columns + self.output_size)

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        whole = self.most_patches * (self.columns + self.output_size)
        return 4 * (whole + most_rows(self.row_operations) * 4 * (self.columns + self.hidden_size))

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedUnifiedTower:
        """See TowerSpec."""
        return LoadedUnifiedTower(self, checkpoint, dtype)


class LoadedUnifiedTower:
    """A layer whose tensors have been checked. See LoadedTower."""

    def __init__(self, spec: UnifiedTowerSpec, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._spec = spec
        names, width = spec.names, spec.hidden_size
        axes = (spec.places, 2) if names.positions_shape == "places first" else (2, spec.places)
        shapes: dict[str, Shape] = {
            names.positions: (*axes, width),
            f"{names.dense}.weight": (width, spec.columns),
            f"{names.dense}.bias": (width,),
            f"{names.projection}.weight": (spec.output_size, width),
        }
        for name, size in (
            (names.first_norm, spec.columns),
            (names.second_norm, width),
            (names.third_norm, width),
        ):
            shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
        root = find_root(names.roots, names.positions, checkpoint)
        self._tensors = TowerTensors(checkpoint, root, shapes, dtype)

    @property
    def weight_bytes(self) -> int:
        """See LoadedTower."""
        return self._tensors.size_bytes

    def build(self, ops: Ops[Any]) -> UnifiedTower[Any]:
        """See LoadedTower."""
        return UnifiedTower(self._spec, self._tensors, ops)


class UnifiedTower(Generic[Tensor]):
    """A layer whose weights are packed for one kernel backend. See Tower."""

    def __init__(self, spec: UnifiedTowerSpec, tensors: TowerTensors, ops: Ops[Tensor]) -> None:
        self._spec = spec
        names, width = spec.names, spec.hidden_size

        def norm(name: str) -> Norm[Tensor]:
            weights = TowerNorm(tensors.vector(f"{name}.weight"), tensors.vector(f"{name}.bias"))
            return packed_norm(ops, weights, LAYER_NORM_EPS)

        self._norms = tuple(map(norm, (names.first_norm, names.second_norm, names.third_norm)))
        self._dense = ops.pack_linear(tensors.linear([names.dense], biased=True))
        table = tensors.table(names.positions, 2 * spec.places)
        if names.positions_shape == "places first":
            self._positions = table.reshape(-1, 2, width).swapaxes(0, 1)
        else:
            self._positions = table.reshape(2, -1, width)
        ones = TowerNorm(np.ones(width, np.float32), None)
        self._last: Norm[Tensor] = packed_norm(ops, ones, spec.norm_eps)
        self._projection = ops.pack_linear(tensors.linear([names.projection], biased=False))

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """See Tower."""
        spec, patches = self._spec, media.array()
        places = np.concatenate([_places(grid) for grid in TileLayout.of(media).grids])
        result: Any = ops.constant(np.empty((len(patches), spec.output_size), np.float32))
        first, second, third = self._norms
        for at in budget.slices(len(patches), spec.row_operations):
            pixels = spec.normalization.apply(patches[at])
            if spec.channels_first:
                channels = pixels.reshape(len(pixels), -1, 3).swapaxes(1, 2)
                pixels = np.ascontiguousarray(channels).reshape(len(pixels), -1)
            x: Any = ops.linear(first.apply(ops, ops.constant(pixels)), self._dense)
            columns, rows = places[at].T
            learned = self._positions[0][columns] + self._positions[1][rows]
            x = second.apply(ops, x)
            x = third.apply(ops, x + ops.constant(learned))
            result[at] = ops.linear(self._last.apply(ops, x), self._projection)
            yield
        return EncodedMedia(result)


def _places(grid: Grid) -> npt.NDArray[np.int64]:
    """Return the column and row of each patch of a tile, [rows * columns, 2]."""
    rows, columns = np.indices(grid).reshape(2, -1)
    return np.stack([columns, rows], axis=1)
