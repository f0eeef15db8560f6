"""The forward pass of a vision transformer, written with the ops of a kernel backend.

A layer is computed in pieces of rows. A piece of one step computes the attention and feed-forward
of a layer, then the queries, keys and values of the next layer. Two key-value caches alternate, as
the pieces after it still read those of the layer before.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.kernels.layer_graphs import Capture
from penstock.kernels.ops_interface import Ops
from penstock.kernels.step_inputs import CacheDtype, HeadNorm, LayerCache
from penstock.models.decoder.rope import identity_table
from penstock.models.towers.activation import activate
from penstock.models.towers.attention_groups import AttentionGroups, Piece, empty_cache
from penstock.models.towers.captured_layers import CapturedLayers, LayerMemory
from penstock.models.towers.packed_layers import Norm
from penstock.models.towers.piece_budget import PieceBudget
from penstock.models.towers.tower_weights import Floats
from penstock.models.towers.vision_layer import VisionLayer, is_float32, packed_layer
from penstock.models.towers.vision_spec import VisionSpec
from penstock.models.towers.vision_weights import VisionWeights

Tensor = TypeVar("Tensor")


class RowSource(Protocol):
    """Rows of float32 that are computed when they are read, since those of a large image take a
    long time."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> Floats: ...


@dataclass(frozen=True, slots=True)
class PatchRows:
    """The patches that a tower computes together: those of one image, or of several.

    - `patches`: [N, patch_columns] float32.
    - `groups`: for each division of the rows (`VisionSpec.kinds`), the number of rows of each
      group of successive rows that attend to each other. If the tower has a class token, each group
      gets one as its first row, which is counted in neither `groups` nor `patches`.
    - `positions`: [N, W] float32, added to the patch embeddings; None: no positions.
    - `rope`: [N, rotary_dim] float32: the cosines, then the sines, of each patch's angles; None:
      nothing is rotated.
    - `seen`: for each group of division 0, the group to whose rows it attends; None: its own. Only
      for towers with one division.
    """

    patches: Floats | RowSource
    groups: tuple[tuple[int, ...], ...]
    positions: Floats | RowSource | None = None
    rope: Floats | None = None
    seen: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TowerStates(Generic[Tensor]):
    """The results of a tower: [N, W] of the last layer, and of the layers `VisionSpec.taps`. With a
    class token, each group begins with its row."""

    last: Tensor
    taps: tuple[Tensor, ...]


class VisionTower(Generic[Tensor]):
    """A vision transformer whose weights are packed for one kernel backend."""

    def __init__(self, spec: VisionSpec, weights: VisionWeights, ops: Ops[Tensor]) -> None:
        self.spec = spec
        self._patch = ops.pack_linear(weights.patch())
        self._class_row = _class_row(weights)
        self._embedding_norm = Norm.packed(ops, weights.embedding_norm(), spec.norm_eps)
        self._layers: list[VisionLayer[Tensor]] = []
        self._cache_dtype: CacheDtype = "f16"
        for index in range(spec.layers):
            kind, layer = spec.kinds[index] if spec.kinds else 0, weights.layer(index)
            self._layers.append(packed_layer(ops, spec, layer, kind))
            if any(is_float32(product.linear) for product in layer.qkv):
                self._cache_dtype = "f32"
        self._final_norm = Norm.packed(ops, weights.final_norm(), spec.norm_eps)
        self._is_capturable = not spec.head_norms and all(
            layer.is_capturable for layer in self._layers
        )

    def states(
        self, ops: Ops[Tensor], rows: PatchRows, budget: PieceBudget
    ) -> Generator[None, None, TowerStates[Tensor]]:
        """Compute the states of `rows`, with a `yield` after each piece. A captured layer is one
        piece."""
        residual = yield from self._embed(ops, rows, budget)
        count = residual.shape[0]
        captured = self._captured(ops, rows, residual)
        memory = captured.memory if captured else self._memory(ops, rows, residual)
        taps = []
        for stage in range(len(self._layers) + 1):
            operations = self._row_operations(memory, stage)
            if captured is not None:
                budget.taken = count * operations
                captured.replays[stage]()
                yield
            else:
                for at in budget.slices(count, operations):
                    self._compute(ops, memory, stage, at)
                    yield
            if stage - 1 in self.spec.taps:
                taps.append(copied(memory.residual))
        last = memory.residual
        if self._final_norm is not None:
            last = self._final_norm.apply(ops, last)
        return TowerStates(copied(last) if captured else last, tuple(taps))

    def _captured(
        self, ops: Ops[Tensor], rows: PatchRows, residual: Tensor
    ) -> CapturedLayers[Tensor] | None:
        """Return the captured layers for rows of this shape, with the input `residual`. Return None
        if the layers have to be computed kernel by kernel."""
        graphs = ops.layer_graphs
        if graphs is None or not self._is_capturable:
            return None
        rotated = None if rows.rope is None else rows.rope.shape
        key = (self, tuple(map(tuple, rows.groups)), rows.seen, rotated)

        def make(capture: Capture) -> CapturedLayers[Tensor]:
            memory = self._memory(ops, rows, copied(residual))
            every = slice(0, len(memory.residual))
            stages = range(len(self._layers) + 1)
            return CapturedLayers(
                memory,
                tuple(
                    capture(partial(self._compute, ops, memory, stage, every)) for stage in stages
                ),
            )

        captured = graphs.recall(key, make)
        if captured is not None:
            captured.load(residual, self._rope(ops, rows, 0)[0])
        return captured

    def _memory(self, ops: Ops[Tensor], rows: PatchRows, residual: Any) -> LayerMemory[Tensor]:
        """Return the memory of the layers for `rows`, with the input `residual`."""
        spec = self.spec
        extra = 1 if spec.class_token else 0
        groups = [[length + extra for length in division] for division in rows.groups]
        table, positions = self._rope(ops, rows, len(residual))
        heads, dim = spec.num_heads, spec.head_dim
        return LayerMemory(
            residual,
            _rows_like(ops, residual),
            table,
            [AttentionGroups(ops, each, positions, rows.seen) for each in groups],
            [empty_cache(ops, groups, heads, dim, self._cache_dtype) for _ in range(2)],
        )

    def _row_operations(self, memory: LayerMemory[Tensor], stage: int) -> float:
        """Return the floating-point operations of one row of a stage; see `_compute`."""
        spec = self.spec
        if stage == 0:
            return 6 * spec.hidden_size**2
        longest = memory.divisions[self._layers[stage - 1].kind].longest
        return spec.row_operations + 4 * spec.hidden_size * longest

    def _compute(
        self, ops: Ops[Tensor], memory: LayerMemory[Tensor], stage: int, at: slice
    ) -> None:
        """Compute the rows `at` of a stage: stage 0 is the queries, keys and values of the first
        layer; stage n is layer n - 1 and those of layer n."""
        residual, queries = memory.residual, memory.queries
        following = self._layers[stage] if stage < len(self._layers) else None
        if stage == 0:
            x = self._layers[0].attention_norm.apply(ops, residual[at])
        else:
            layer, own = self._layers[stage - 1], memory.caches[(stage - 1) % 2]
            piece = memory.divisions[layer.kind].piece(at)
            seen = self._attention(ops, queries[at], piece, own)
            x, residual[at] = self._block(ops, layer, seen, residual[at], following)
        if following is not None:
            later, cache = memory.divisions[following.kind].piece(at), memory.caches[stage % 2]
            queries[at] = self._queries(ops, following, x, memory.table, later, cache)

    def _embed(
        self, ops: Ops[Tensor], rows: PatchRows, budget: PieceBudget
    ) -> Generator[None, None, Any]:
        """Return the embeddings [N, W] of the patches and class tokens."""
        spec = self.spec
        operations = 2 * spec.hidden_size * spec.patch_columns
        groups = rows.groups[0] if self._class_row is not None else (len(rows.patches),)
        extra = 0 if self._class_row is None else 1
        count = sum(groups) + extra * len(groups)
        embeddings: Any = ops.constant(np.empty((count, spec.hidden_size), np.float32))
        first = start = 0
        for length in groups:
            if self._class_row is not None:
                embeddings[first] = ops.constant(self._class_row)
            first += extra
            for piece in budget.slices(length, operations):
                part = slice(start + piece.start, start + piece.stop)
                x: Any = ops.linear(ops.constant(rows.patches[part]), self._patch)
                if rows.positions is not None:
                    x = x + ops.constant(rows.positions[part])
                embeddings[first + piece.start : first + piece.stop] = x
                yield
            first, start = first + length, start + length
        if self._embedding_norm is not None:
            embeddings = self._embedding_norm.apply(ops, embeddings)
        return embeddings

    def _rope(
        self, ops: Ops[Tensor], rows: PatchRows, count: int
    ) -> tuple[Tensor, npt.NDArray[np.int32]]:
        """Return the RoPE table and the row of the table for each row."""
        if rows.rope is None:
            return ops.constant(identity_table(1)), np.zeros(count, np.int32)
        assert self._class_row is None, "no family rotates beside a class token"
        return ops.constant(rows.rope), np.arange(count, dtype=np.int32)

    def _queries(
        self,
        ops: Ops[Tensor],
        layer: VisionLayer[Tensor],
        normed: Tensor,
        table: Tensor,
        piece: Piece[Tensor],
        cache: LayerCache[Tensor],
    ) -> Tensor:
        """Store the keys and values of a piece and return its queries."""
        spec = self.spec
        qkv: Any = layer.qkv.of(ops, normed)
        head_norm = None
        if spec.head_norms:
            head_norm = HeadNorm(layer.q_norm.weight, layer.k_norm.weight, spec.norm_eps)
            self._normalize_values(ops, qkv, layer)
        elif layer.q_norm is not None and layer.k_norm is not None:
            width = spec.hidden_size
            for norm, at in ((layer.q_norm, 0), (layer.k_norm, width)):
                qkv[:, at : at + width] = norm.apply(ops, copied(qkv[:, at : at + width]))
        heads = (spec.num_heads, spec.num_heads, spec.head_dim)
        return ops.rope_cache(qkv, table, piece.inputs, cache, heads, head_norm)

    def _normalize_values(self, ops: Ops[Tensor], qkv: Any, layer: VisionLayer[Tensor]) -> None:
        """Normalize each head of the values in place."""
        spec, rows = self.spec, len(qkv)
        first = 2 * spec.hidden_size
        values: Any = ops.constant(qkv[:, first:])
        values = values.reshape(rows * spec.num_heads, spec.head_dim)
        normed: Any = ops.rms_norm(values, layer.ones, spec.norm_eps)
        qkv[:, first:] = normed.reshape(rows, spec.hidden_size)

    def _attention(
        self, ops: Ops[Tensor], queries: Tensor, piece: Piece[Tensor], cache: LayerCache[Tensor]
    ) -> Tensor:
        spec = self.spec
        heads = (spec.num_heads, spec.num_heads, spec.head_dim)
        scale = spec.attention_scale or spec.head_dim**-0.5
        if self._cache_dtype == "f32":
            return ops.bidirectional_attention(queries, piece.inputs, cache, heads, scale, 0)
        return ops.rounded_attention(queries, piece.inputs, cache, heads, scale, 0)

    def _block(
        self,
        ops: Ops[Tensor],
        layer: VisionLayer[Tensor],
        seen: Tensor,
        residual: Tensor,
        following: VisionLayer[Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """Compute the rest of a layer after attention. Return the input of the following layer's
        attention and the new residual."""
        x: Any = layer.output.of(ops, seen)
        if layer.attention_post_norm is not None:
            x = layer.attention_post_norm.apply(ops, x)
        if layer.attention_scale is not None:
            x = x * layer.attention_scale
        x, total = layer.mlp_norm.add(ops, x, residual)
        x = activate(ops, layer.up.of(ops, x), self.spec.activation)
        x = layer.down.of(ops, x)
        if layer.mlp_post_norm is not None:
            x = layer.mlp_post_norm.apply(ops, x)
        if layer.mlp_scale is not None:
            x = x * layer.mlp_scale
        if following is not None:
            return following.attention_norm.add(ops, x, total)
        total = x + total
        return total, total


def _class_row(weights: VisionWeights) -> Floats | None:
    """Return the class token with its position added."""
    token, positions = weights.class_token(), weights.positions()
    if token is None or positions is None:
        return token
    row: Floats = token + positions[0]
    return row


def _rows_like(ops: Ops[Tensor], x: Any) -> Any:
    return ops.constant(np.empty(tuple(x.shape), np.float32))


def copied(x: Any) -> Any:
    """Return a contiguous copy of a tensor of any backend."""
    return x * 1
