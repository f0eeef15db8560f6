"""Tensor parallelism: what one rank of several holds of a decoder.

Heads, the columns of feed-forwards and the rows of the head are divided; embedding, norms and
routers are whole on every rank. q, k, v, gate and up are cut by rows, output and down by columns:
their results are parts of sums (`Communicator.all_reduce`). The scheme is that of Megatron-LM
(arXiv 1909.08053).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Experts, Linear, Matrix
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.weights import (
    DecoderWeights,
    LayerWeights,
    MatrixBytes,
    Vector,
    expected_shapes,
    prefetch_layers,
)
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.weight_slices import column_step, pad_rows, row_range, take_columns


def shard_model(model: LoadedModel, rank: int, count: int) -> LoadedModel:
    """What rank `rank` of `count` serves of a model. Raises ModelError where it cannot be divided;
    for groups of columns only when the layer is read."""
    assert isinstance(model.weights, DecoderWeights), "a shard is not divided again"
    spec = shard_spec(model.spec, count, model.model_id)
    weights = ShardWeights(model.weights, model.spec, rank, count)
    return replace(model, spec=spec, weights=weights)


def shard_spec(spec: DecoderSpec, count: int, where: str) -> DecoderSpec:
    """What each of `count` ranks computes: its share of heads and of feed-forwards, all of the
    vocabulary. Where there are fewer key-value heads than ranks, several ranks have the same one.

    Raises ModelError that opens with `where` and names the size that cannot be divided.
    """

    def divided(size: int, what: str) -> int:
        if size % count:
            raise ModelError(f"{where}: {what} {size} cannot be divided among {count} ranks")
        return size // count

    def of_layer(layer: LayerSpec) -> LayerSpec:
        if layer.experts is None:
            return layer
        ff = divided(layer.experts.ff, "feed-forward width of an expert")
        return replace(layer, experts=replace(layer.experts, ff=ff))

    dense = any(layer.experts is None for layer in spec.layers)
    repeated = spec.kv_heads < count and count % spec.kv_heads == 0
    return replace(
        spec,
        heads=divided(spec.heads, "heads"),
        kv_heads=1 if repeated else divided(spec.kv_heads, "key-value heads"),
        ff=divided(spec.ff, "feed-forward width") if dense else spec.ff,
        layers=tuple(map(of_layer, spec.layers)),
    )


@dataclass(frozen=True, slots=True)
class ShardSlices:
    """Which rows of projections a rank has: of q, of k and v, of gate and up; those of q and of
    gate are its columns of output and down."""

    q: slice
    kv: slice
    ff: slice


def shard_slices(spec: DecoderSpec, rank: int, count: int) -> ShardSlices:
    """The share of rank `rank` in a model. Raises ModelError as `shard_spec` does."""
    part = shard_spec(spec, count, spec.architecture)
    first_kv = rank * spec.kv_heads // count * spec.head_dim
    kv = slice(first_kv, first_kv + part.kv_rows)
    return ShardSlices(_share(rank, part.q_rows), kv, _share(rank, part.ff))


def _share(rank: int, size: int) -> slice:
    return slice(rank * size, (rank + 1) * size)


class ShardWeights:
    """`Weights` of rank `rank` of `count`, whose sizes are those of `shard_spec`. `spec`: that of
    `whole`. The head has ceil(V / count) rows, those beyond V zeros."""

    def __init__(self, whole: DecoderWeights, spec: DecoderSpec, rank: int, count: int) -> None:
        """Raises ModelError as `shard_spec` does."""
        self._whole = whole
        self._spec = spec
        self._rank = rank
        self._count = count
        self._part = shard_spec(spec, count, str(whole.path))
        self._share = shard_slices(spec, rank, count)
        self._heads = _share(rank, self._part.heads)
        self._head_rows = -(-spec.vocab // count)

    def embedding(self) -> Matrix:
        """[V, W], whole."""
        return self._whole.embedding()

    def head(self) -> Linear:
        """[ceil(V / count), W]; also where it is rows of the embedding."""
        head = self._whole.head()
        table = self._whole.embedding() if head is None else head.parts[0]
        rows = _share(self._rank, self._head_rows)
        own = slice(min(rows.start, self._spec.vocab), min(rows.stop, self._spec.vocab))
        return Linear((pad_rows(row_range(table, own), self._head_rows),))

    def final_norm(self) -> Vector:
        """[W]."""
        return self._whole.final_norm()

    def rope_factors(self) -> Vector | None:
        """See `Weights`."""
        return self._whole.rope_factors()

    def forms(self) -> tuple[MatrixForm, ...]:
        """See `Weights`: those of the whole."""
        return self._whole.forms()

    def float8_savings(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        return self._whole.float8_savings(size, self._part)

    def packed_bytes(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        names = self._whole.names
        shapes = expected_shapes(names, self._part)
        head = {f"{names.head}.weight": (self._head_rows, self._spec.width)}
        if self._spec.tied_head:
            head = {f"{names.embedding}.weight": (self._head_rows, self._spec.width)}
            return self._whole.bytes_of(shapes, size) + self._whole.bytes_of(head, size)
        return self._whole.bytes_of(shapes | head, size)

    def layers(self) -> Iterator[LayerWeights]:
        """Every layer in order, read and cut a few ahead of the one that is given. Raises
        ModelError where a group of columns would be cut."""
        return prefetch_layers(self.layer, len(self._spec.layers))

    def layer(self, index: int) -> LayerWeights:
        """One layer."""
        whole, share, names = self._whole.layer(index), self._share, self._whole.names
        prefix = names.layer.format(index)
        gate_up, down, experts = whole.gate_up, whole.down, whole.experts
        return replace(
            whole,
            qkv=_rows(whole.qkv, (share.q, share.kv, share.kv)),
            output=self._columns(whole.output, share.q, prefix + names.output),
            gate_up=None if gate_up is None else _rows(gate_up, (share.ff, share.ff)),
            down=None if down is None else self._columns(down, share.ff, prefix + names.down),
            experts=None if experts is None else self._experts(experts, prefix),
            sinks=None if whole.sinks is None else whole.sinks[self._heads],
        )

    def _experts(self, whole: Experts, prefix: str) -> Experts:
        ff = whole.shape[1]
        inner = _share(self._rank, ff // self._count)
        opening = whole.gate_up_bias
        if opening is not None:
            opening = np.concatenate([half[:, inner] for half in np.split(opening, 2, axis=1)], 1)
        name = prefix + self._whole.names.expert_down
        return Experts(
            tuple(row_range(gate, inner) for gate in whole.gate),
            tuple(row_range(up, inner) for up in whole.up),
            tuple(
                self._matrix_columns(down, inner, name.format(expert))
                for expert, down in enumerate(whole.down)
            ),
            opening,
            None if whole.down_bias is None else self._once(whole.down_bias),
            whole.activation,
        )

    def _once(self, bias: Vector) -> Vector:
        """Of results that all ranks add up: rank 0 has it, the others zeros."""
        return bias if self._rank == 0 else np.zeros_like(bias)

    def _columns(self, linear: Linear, columns: slice, name: str) -> Linear:
        """A part of the sum that the layer is; rank 0 adds the bias."""
        part = self._matrix_columns(linear.parts[0], columns, name)
        return Linear((part,), linear.bias if self._rank == 0 else None)

    def _matrix_columns(self, matrix: Matrix, columns: slice, name: str) -> Matrix:
        step, width = column_step(matrix), matrix.shape[1]
        if self._count > 1 and (columns.stop - columns.start) % step:
            raise ModelError(
                f"{self._whole.path}: {name}.weight: {width} columns in groups of {step} cannot be "
                f"divided among {self._count} ranks"
            )
        return take_columns(matrix, columns)


def _rows(linear: Linear, rows: tuple[slice, ...]) -> Linear:
    """Some rows of each part."""
    parts = tuple(row_range(part, own) for part, own in zip(linear.parts, rows, strict=True))
    if linear.bias is None:
        return Linear(parts)
    ends = np.cumsum([part.shape[0] for part in linear.parts])
    biases = np.split(linear.bias, ends[:-1])
    return Linear(parts, np.concatenate([b[own] for b, own in zip(biases, rows, strict=True)]))
