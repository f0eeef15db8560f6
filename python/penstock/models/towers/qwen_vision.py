"""The vision towers of the Qwen-VL models: a vision transformer over frames, and mergers that turn
2 x 2 patches into a token of the language model.

Patches attend only to patches of the same group of frames, so a video is encoded group by group.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.weights import Linear
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.media.patches import merged_cells
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.towers.packed_layers import Norm
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.qwen_rows import CutPatches, FittedPositions, Ints, QwenGrid
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import TowerTensors, WeightType, find_root
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_tower import PatchRows, VisionTower
from penstock.models.towers.vision_weights import TowerNorm, VisionNames, VisionWeights
from penstock.quant.checkpoint import Checkpoint

Tensor = TypeVar("Tensor")

MERGER_EPS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class MergerNames:
    """The names of a merger's norm and linear layers, without `.weight` and `.bias`."""

    norm: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class QwenTowerSpec:
    """The configuration of a Qwen-VL tower.

    - `vision`: the vision transformer. Its taps are the layers of DeepStack.
    - `merger`: normalizes patches, then merges them.
    - `deep`: the mergers of the taps, which merge patches, then normalize them.
    - `output_size`: the width of the language model.
    - `most_patches`: the patches of the largest frame.
    """

    vision: VisionSpec
    names: VisionNames
    grid: QwenGrid
    merger: MergerNames
    output_size: int
    most_patches: int
    deep: tuple[MergerNames, ...] = ()

    @property
    def kinds(self) -> frozenset[MediaKind]:
        """See TowerSpec."""
        return frozenset({"image", "video"})

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        results = self.most_patches // self.grid.merge**2 * self.output_size * 4
        return self.vision.scratch_bytes(self.most_patches) + results * (1 + len(self.deep))

    def open(self, checkpoint: Checkpoint, dtype: Literal["auto", "f32"]) -> LoadedQwenTower:
        """See TowerSpec."""
        return LoadedQwenTower(self, checkpoint, dtype)


class LoadedQwenTower:
    """A tower whose tensors have been checked. See LoadedTower."""

    def __init__(self, spec: QwenTowerSpec, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._spec = spec
        self._vision = VisionWeights(checkpoint, spec.names, spec.vision, dtype)
        root = find_root(spec.names.roots, f"{spec.names.patch}.weight", checkpoint)
        self._mergers = TowerTensors(checkpoint, root, _merger_shapes(spec), dtype)

    @property
    def weight_bytes(self) -> int:
        """See LoadedTower."""
        return self._vision.size_bytes + self._mergers.size_bytes

    def build(self, ops: Ops[Any]) -> QwenTower[Any]:
        """See LoadedTower."""
        spec = self._spec
        mergers = [_Merger(ops, self._mergers, spec, spec.merger, "patches")]
        mergers += [_Merger(ops, self._mergers, spec, names, "tokens") for names in spec.deep]
        return QwenTower(spec, VisionTower(spec.vision, self._vision, ops), self._vision, mergers)


class QwenTower(Generic[Tensor]):
    """A tower whose weights are packed for one kernel backend. See Tower."""

    def __init__(
        self,
        spec: QwenTowerSpec,
        vision: VisionTower[Tensor],
        weights: VisionWeights,
        mergers: list[_Merger[Tensor]],
    ) -> None:
        self._spec = spec
        self._vision = vision
        self._table = weights.positions()
        self._mergers = mergers

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """See Tower."""
        grid = self._spec.grid
        groups, rows, columns = media.layout[:3]
        frames = media.array()
        each = len(frames) // groups
        tokens = rows * columns // grid.merge**2
        places, order, divisions = self._order(rows, columns)
        learned = None
        if self._table is not None:
            learned = FittedPositions(self._table, rows, columns, places)
        rope = grid.rope(places, self._spec.vision.head_dim)
        results: list[Any] = [
            ops.constant(np.empty((groups * tokens, self._spec.output_size), np.float32))
            for _ in self._mergers
        ]
        for group in range(groups):
            shown = frames[group * each : (group + 1) * each]
            fed = PatchRows(CutPatches(grid, shown, places), divisions, learned, rope)
            states = yield from self._vision.states(ops, fed, budget)
            first = group * tokens
            sources = (states.last, *states.taps)
            for result, merger, source in zip(results, self._mergers, sources, strict=True):
                for at, merged in merger.merge(ops, source, budget):
                    rows_at: Any = slice(first + at.start, first + at.stop)
                    if order is not None:
                        rows_at = ops.constant((first + order[at]).astype(np.int64))
                    result[rows_at] = merged
                    yield
        return EncodedMedia(results[0], tuple(results[1:]))

    def _order(
        self, rows: int, columns: int
    ) -> tuple[Ints, Ints | None, tuple[tuple[int, ...], ...]]:
        """Return the row and column of each patch of a frame in the order in which they are fed,
        the order of the tokens if it differs, and the attention groups: the windows, if the tower
        has them, and the frame."""
        grid = self._spec.grid
        places, whole = merged_cells(rows, columns, grid.merge), (rows * columns,)
        if not grid.window:
            return places, None, (whole,)
        order, windows = grid.window_order(rows, columns)
        moved = places.reshape(len(order), -1, 2)[order].reshape(-1, 2)
        return moved, order, (windows, whole)


class _Merger(Generic[Tensor]):
    """A norm and two linear layers with GELU between them, over the patches of a token."""

    def __init__(
        self,
        ops: Ops[Tensor],
        tensors: TowerTensors,
        spec: QwenTowerSpec,
        names: MergerNames,
        normed: Literal["patches", "tokens"],
    ) -> None:
        weight = tensors.vector(f"{names.norm}.weight")
        has_bias = spec.vision.norm == "layer"
        bias = tensors.vector(f"{names.norm}.bias") if has_bias else None
        self._norm = _packed(ops, TowerNorm(weight, bias))
        self._normed = normed
        self._first = ops.pack_linear(_linear(tensors, names.first))
        self._second = ops.pack_linear(_linear(tensors, names.second))
        self._width = spec.vision.hidden_size * spec.grid.merge**2
        self._operations = 2 * self._width * (self._width + spec.output_size)

    def merge(
        self, ops: Ops[Tensor], states: Any, budget: PieceBudget
    ) -> Generator[tuple[slice, Any], None, None]:
        """Yield the tokens and their embeddings of each piece."""
        cells = self._width // states.shape[1]
        for at in budget.slices(len(states) // cells, self._operations):
            rows: Any = states[at.start * cells : at.stop * cells]
            if self._normed == "patches":
                rows = self._norm.apply(ops, rows)
            rows = rows.reshape(-1, self._width)
            if self._normed == "tokens":
                rows = self._norm.apply(ops, rows)
            yield at, ops.linear(ops.gelu(ops.linear(rows, self._first)), self._second)


def _packed(ops: Ops[Tensor], norm: TowerNorm) -> Norm[Tensor]:
    packed = Norm[Tensor].packed(ops, norm, MERGER_EPS)
    assert packed is not None
    return packed


def _linear(tensors: TowerTensors, name: str) -> Linear:
    return tensors.linear([name], biased=True)


def _merger_shapes(spec: QwenTowerSpec) -> dict[str, Shape]:
    width = spec.vision.hidden_size
    merged = width * spec.grid.merge**2
    shapes: dict[str, Shape] = {}
    mergers = ((spec.merger, width), *((names, merged) for names in spec.deep))
    for names, normed in mergers:
        shapes[f"{names.norm}.weight"] = (normed,)
        if spec.vision.norm == "layer":
            shapes[f"{names.norm}.bias"] = (normed,)
        for name, rows in ((names.first, merged), (names.second, spec.output_size)):
            shapes[f"{name}.weight"] = (rows, merged)
            shapes[f"{name}.bias"] = (rows,)
    return shapes
