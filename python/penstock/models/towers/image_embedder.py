"""Towers that turn an image into one vector: a vision transformer with a pooling head and a
projection (CLIP, SigLIP)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import StepInputs
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.rope import identity_table
from penstock.models.media.prepared import MediaKind, PreparedMedia
from penstock.models.media.tiles import Normalization, TileLayout
from penstock.models.towers.activation import activate
from penstock.models.towers.attention_groups import AttentionGroups, empty_cache
from penstock.models.towers.packed_layers import Norm
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.position_grids import PositionGrids, PositionScheme
from penstock.models.towers.tower import EncodedMedia
from penstock.models.towers.tower_weights import Floats, TowerTensors, WeightType, tower_linear
from penstock.models.towers.vision_spec import VisionActivation, VisionSpec
from penstock.models.towers.vision_tower import PatchRows, VisionTower
from penstock.models.towers.vision_weights import TowerNorm, VisionNames, VisionWeights
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize

Tensor = TypeVar("Tensor")

_IMAGE: Final = frozenset[MediaKind]({"image"})


@dataclass(frozen=True, slots=True)
class ClassHead:
    """The class token's state is normalized and projected (CLIP).

    - `norm`, `projection`: the names of the tensors without `.weight` and `.bias`.
    - `width`: the elements of an embedding.
    """

    norm: str
    projection: str
    width: int

    def shapes(self, spec: VisionSpec) -> dict[str, Shape]:
        """Return the name and shape of every tensor."""
        own = spec.hidden_size
        norms: dict[str, Shape] = {f"{self.norm}.{part}": (own,) for part in ("weight", "bias")}
        return norms | {f"{self.projection}.weight": (self.width, own)}

    def build(self, ops: Ops[Any], spec: VisionSpec, tensors: TowerTensors) -> _ClassPooling[Any]:
        """Pack the weights."""
        norm = _norm(ops, tensors, self.norm, spec.norm_eps)
        return _ClassPooling(norm, ops.pack_linear(tensors.linear([self.projection], biased=False)))


@dataclass(frozen=True, slots=True)
class ProbeHead:
    """A learned query attends to all patches; a feed-forward follows (SigLIP). `name`: the prefix
    of the tensors."""

    name: str

    def shapes(self, spec: VisionSpec) -> dict[str, Shape]:
        """Return the name and shape of every tensor."""
        own, inner = spec.hidden_size, spec.intermediate_size
        each: dict[str, Shape] = {
            "probe": (1, 1, own),
            "attention.in_proj_weight": (3 * own, own),
            "attention.in_proj_bias": (3 * own,),
            "attention.out_proj.weight": (own, own),
            "attention.out_proj.bias": (own,),
            "layernorm.weight": (own,),
            "layernorm.bias": (own,),
            "mlp.fc1.weight": (inner, own),
            "mlp.fc1.bias": (inner,),
            "mlp.fc2.weight": (own, inner),
            "mlp.fc2.bias": (own,),
        }
        return {self.name + name: shape for name, shape in each.items()}

    def build(self, ops: Ops[Any], spec: VisionSpec, tensors: TowerTensors) -> _ProbePooling[Any]:
        """Pack the weights."""
        name, width = self.name, spec.hidden_size
        matrix = tensors.matrix(f"{name}attention.in_proj_weight")
        bias = tensors.vector(f"{name}attention.in_proj_bias")
        query = dequantize(matrix)[:width] @ tensors.vector(f"{name}probe") + bias[:width]
        return _ProbePooling(
            query=query[None].astype(np.float32),
            heads=(spec.num_heads, spec.num_heads, spec.head_dim),
            qkv=ops.pack_linear(tower_linear((matrix,), bias)),
            output=ops.pack_linear(tensors.linear([f"{name}attention.out_proj"], biased=True)),
            norm=_norm(ops, tensors, f"{name}layernorm", spec.norm_eps),
            up=ops.pack_linear(tensors.linear([f"{name}mlp.fc1"], biased=True)),
            down=ops.pack_linear(tensors.linear([f"{name}mlp.fc2"], biased=True)),
            activation=spec.activation,
        )


@dataclass(frozen=True, slots=True)
class ImageEmbedderSpec:
    """The configuration of an image embedder, a `TowerSpec` whose result has one row of length 1.

    `roots`: the prefixes that may precede the tensors of the head.
    """

    vision: VisionSpec
    names: VisionNames
    head: ClassHead | ProbeHead
    roots: tuple[str, ...]
    normalization: Normalization
    most_patches: int
    scheme: PositionScheme = "fixed"
    kinds: frozenset[MediaKind] = _IMAGE

    @property
    def width(self) -> int:
        """The elements of an embedding."""
        return self.head.width if isinstance(self.head, ClassHead) else self.vision.hidden_size

    def scratch_bytes(self) -> int:
        """See TowerSpec."""
        # The head computes keys and values of all patches.
        return self.vision.scratch_bytes(self.most_patches + 1) + 20 * (
            self.most_patches * self.vision.hidden_size
        )

    def open(self, checkpoint: Checkpoint, dtype: WeightType) -> OpenImageEmbedder:
        """See TowerSpec."""
        return OpenImageEmbedder(self, checkpoint, dtype)


class OpenImageEmbedder:
    """An image embedder whose tensors have been found and checked, a `LoadedTower`."""

    def __init__(self, spec: ImageEmbedderSpec, checkpoint: Checkpoint, dtype: WeightType) -> None:
        self._spec = spec
        self._vision = VisionWeights(checkpoint, spec.names, spec.vision, dtype)
        shapes = spec.head.shapes(spec.vision)
        found = (root for root in spec.roots if root + next(iter(shapes)) in checkpoint.tensors)
        self._head = TowerTensors(checkpoint, next(found, spec.roots[0]), shapes, dtype)

    @property
    def weight_bytes(self) -> int:
        """See LoadedTower."""
        return self._vision.size_bytes + self._head.size_bytes

    def build(self, ops: Ops[Any]) -> ImageEmbedder[Any]:
        """See LoadedTower."""
        spec, table = self._spec, self._vision.positions()
        positions = None
        if table is not None:
            positions = PositionGrids(table[1:] if spec.vision.class_token else table, spec.scheme)
        tower = VisionTower(spec.vision, self._vision, ops)
        return ImageEmbedder(spec, tower, spec.head.build(ops, spec.vision, self._head), positions)


class ImageEmbedder(Generic[Tensor]):
    """An image embedder whose weights are packed for one kernel backend, a `Tower`."""

    def __init__(
        self,
        spec: ImageEmbedderSpec,
        vision: VisionTower[Tensor],
        pooling: _ClassPooling[Tensor] | _ProbePooling[Tensor],
        positions: PositionGrids | None,
    ) -> None:
        self._spec = spec
        self._vision = vision
        self._pooling = pooling
        self._positions = positions

    def encode(
        self, ops: Ops[Tensor], media: PreparedMedia, budget: PieceBudget
    ) -> Generator[None, None, EncodedMedia[Tensor]]:
        """See Tower. The result has one row."""
        (grid,) = TileLayout.of(media).grids
        positions = None if self._positions is None else self._positions.rows(grid)
        patches = self._spec.normalization.rows(media.array())
        rows = PatchRows(patches, ((len(patches),),), positions)
        states = yield from self._vision.states(ops, rows, budget)
        return EncodedMedia(ops.l2_normalize(self._pooling.pool(ops, states.last)))


@dataclass(frozen=True, slots=True)
class _ClassPooling(Generic[Tensor]):
    norm: Norm[Tensor]
    projection: Any

    def pool(self, ops: Ops[Tensor], states: Any) -> Tensor:
        return ops.linear(self.norm.apply(ops, states[:1]), self.projection)


@dataclass(frozen=True, slots=True)
class _ProbePooling(Generic[Tensor]):
    query: Floats
    heads: tuple[int, int, int]
    qkv: Any
    output: Any
    norm: Norm[Tensor]
    up: Any
    down: Any
    activation: VisionActivation

    def pool(self, ops: Ops[Tensor], states: Any) -> Tensor:
        count = len(states)
        whole = AttentionGroups(ops, (count,), np.zeros(count, np.int32)).piece(slice(0, count))
        cache = empty_cache(ops, ((count,),), self.heads[0], self.heads[2])
        table = ops.constant(identity_table(1))
        ops.rope_cache(ops.linear(states, self.qkv), table, whole.inputs, cache, self.heads, None)
        seen = ops.bidirectional_attention(
            ops.constant(self.query),
            _one_query(ops, whole.inputs),
            cache,
            self.heads,
            self.heads[2] ** -0.5,
            0,
        )
        x: Any = ops.linear(seen, self.output)
        up = ops.linear(self.norm.apply(ops, x), self.up)
        result: Tensor = x + ops.linear(activate(ops, up, self.activation), self.down)
        return result


def _one_query(ops: Ops[Tensor], inputs: StepInputs[Tensor]) -> StepInputs[Tensor]:
    """Return the inputs with which one query attends to the one group of `inputs`."""
    zero = ops.constant(np.zeros(1, np.int32))
    return StepInputs(
        tokens=zero,
        positions=zero,
        slots=zero,
        query_starts=ops.constant(np.array([0, 1], np.int32)),
        context_lens=inputs.context_lens,
        block_tables=inputs.block_tables,
        sample_rows=inputs.sample_rows,
    )


def _norm(ops: Ops[Tensor], tensors: TowerTensors, name: str, eps: float) -> Norm[Tensor]:
    weight, bias = tensors.vector(f"{name}.weight"), tensors.vector(f"{name}.bias")
    norm = Norm.packed(ops, TowerNorm(weight, bias), eps)
    assert norm is not None, "the norm has weights"
    return norm
