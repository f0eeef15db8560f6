"""Tensor parallelism: divides a decoder among ranks (Megatron-LM, arXiv 1909.08053).

Attention heads, feed-forward columns and the rows of the language-model head are divided; each rank
has the whole embedding and all norms and routers. q, k, v, gate and up are split by rows, output
and down by columns. The results of output and down are partial sums, which
`Communicator.all_reduce` adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Experts, Linear, Matrix
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.decoder.expert_weights import SharedWeights
from penstock.models.decoder.layer_weights import LayerWeights, MatrixBytes
from penstock.models.decoder.mixer import DivisibleMixerSpec, LayerTensors, MixerSpec, Vector
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.decoder.weights import DecoderWeights, prefetch_layers
from penstock.models.loader.model_loader import LoadedModel
from penstock.quant.weight_slices import column_step, pad_rows, row_range, take_columns


def shard_model(model: LoadedModel, rank: int, count: int) -> LoadedModel:
    """Return the shard of a model that rank `rank` of `count` holds. Raises ModelError if the model
    cannot be divided. Quantization groups that a split would cut are found only when a layer is
    read."""
    assert isinstance(model.weights, DecoderWeights), "a shard is not divided again"
    spec = shard_spec(model.spec, count, model.model_id)
    weights = ShardWeights(model.weights, model.spec, rank, count)
    return replace(model, spec=spec, weights=weights)


def shard_spec(spec: DecoderSpec, count: int, where: str) -> DecoderSpec:
    """Return the spec that each of `count` shards has: a part of the heads and of the feed-forward
    width, and the whole vocabulary. If there are fewer KV heads than ranks, several ranks hold the
    same KV head.

    Raises ModelError that starts with `where` and names the size that cannot be divided.
    """

    def divided(size: int, what: str) -> int:
        if size % count:
            raise ModelError(f"{where}: {what} {size} cannot be divided among {count} ranks")
        return size // count

    def of_kv_heads(heads: int) -> int:
        repeated = heads < count and count % heads == 0
        return 1 if repeated else divided(heads, "key-value heads")

    def of_layer(layer: LayerSpec) -> LayerSpec:
        kv_heads = layer.attention.num_kv_heads
        if kv_heads is not None:
            own = replace(layer.attention, num_kv_heads=of_kv_heads(kv_heads))
            layer = replace(layer, attention=own)
        if layer.mixer is not None:
            if not isinstance(layer.mixer, DivisibleMixerSpec):
                raise ModelError(
                    f"{where}: layers without attention cannot be divided among ranks yet"
                )
            layer = replace(layer, mixer=layer.mixer.shard(count, where))
        if layer.intermediate_size is not None and layer.is_dense:
            ff = divided(layer.intermediate_size, "feed-forward width")
            layer = replace(layer, intermediate_size=ff)
        if layer.experts is None:
            return layer
        ff = divided(layer.experts.intermediate_size, "feed-forward width of an expert")
        shared = divided(layer.experts.shared_size, "feed-forward width of the shared experts")
        mixture = replace(layer.experts, intermediate_size=ff, shared_size=shared)
        return replace(layer, experts=mixture)

    if spec.qk_norm and spec.qk_norm_form == "all":
        raise ModelError(f"{where}: norms of all heads cannot be divided among ranks yet")
    if any(layer.gate_deviations is not None for layer in spec.layers):
        raise ModelError(
            f"{where}: a feed-forward of which only the largest gates count cannot be divided"
            " among ranks"
        )
    dense = any(layer.is_dense for layer in spec.layers)
    return replace(
        spec,
        num_heads=divided(spec.num_heads, "heads"),
        num_kv_heads=of_kv_heads(spec.num_kv_heads),
        intermediate_size=divided(spec.intermediate_size, "feed-forward width")
        if dense
        else spec.intermediate_size,
        layers=tuple(map(of_layer, spec.layers)),
    )


@dataclass(frozen=True, slots=True)
class ShardSlices:
    """The rows of the projections of a layer that one rank holds.

    - `q`: rows of q; also the rank's columns of output.
    - `kv`: rows of k and of v.
    - `ff`: rows of gate and of up; also the rank's columns of down.
    """

    q: slice
    kv: slice
    ff: slice


def shard_slices(spec: DecoderSpec, rank: int, count: int) -> tuple[ShardSlices, ...]:
    """Return the slices that rank `rank` of `count` holds of each layer. Raises ModelError as
    `shard_spec` does."""
    part = shard_spec(spec, count, spec.architecture)

    def of_layer(whole: LayerSpec, own: LayerSpec) -> ShardSlices:
        heads, kv_heads, dim = part.heads(own)
        first_kv = rank * spec.heads(whole)[1] // count * dim
        kv = slice(first_kv, first_kv + kv_heads * dim)
        ff = _even_slice(rank, part.feed_forward_size(own))
        return ShardSlices(_even_slice(rank, heads * dim), kv, ff)

    return tuple(of_layer(*pair) for pair in zip(spec.layers, part.layers, strict=True))


def _even_slice(rank: int, size: int) -> slice:
    return slice(rank * size, (rank + 1) * size)


class ShardWeights:
    """The `Weights` of the shard that rank `rank` of `count` holds, with the sizes of `shard_spec`.
    `spec`: the spec of the whole model. The language-model head has ceil(V / count) rows; rows
    beyond V are zeros."""

    def __init__(self, whole: DecoderWeights, spec: DecoderSpec, rank: int, count: int) -> None:
        """Compute the slices of the rank. Raises ModelError as `shard_spec` does."""
        self._whole = whole
        self._spec = spec
        self._rank = rank
        self._count = count
        self._part = shard_spec(spec, count, str(whole.path))
        self._slices = shard_slices(spec, rank, count)
        self._heads = _even_slice(rank, self._part.num_heads)
        self._head_rows = -(-spec.vocab_size // count)

    def embedding(self) -> Matrix:
        """Return the whole embedding [V, W]."""
        return self._whole.embedding()

    def head(self) -> Linear:
        """Return the rank's rows [ceil(V / count), W] of the language-model head, or of the
        embedding if the head is tied."""
        head = self._whole.head()
        table = self._whole.embedding() if head is None else head.parts[0]
        rows = _even_slice(self._rank, self._head_rows)
        own = slice(min(rows.start, self._spec.vocab_size), min(rows.stop, self._spec.vocab_size))
        part = pad_rows(row_range(table, own), self._head_rows)
        if head is None or head.bias is None:
            return Linear((part,))
        bias = np.zeros(self._head_rows, np.float32)
        bias[: own.stop - own.start] = head.bias[own]
        return Linear((part,), bias)

    def final_norm(self) -> Vector:
        """Return the weight [W] of the last norm, or its weight and its bias [2, W]."""
        return self._whole.final_norm()

    def rope_factors(self) -> Vector | None:
        """See `Weights`."""
        return self._whole.rope_factors()

    def forms(self) -> tuple[MatrixForm, ...]:
        """See `Weights`. Returns the formats of the whole model."""
        return self._whole.forms()

    def float8_savings(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        return self._whole.float8_savings(size, self._part)

    def packed_bytes(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        names = self._whole.names
        shapes = expected_shapes(names, self._part)
        head: dict[str, Shape] = {f"{names.head}.weight": (self._head_rows, self._spec.hidden_size)}
        if self._spec.head_bias:
            head[f"{names.head}.bias"] = (self._head_rows,)
        if self._spec.tied_head:
            head = {f"{names.embedding}.weight": (self._head_rows, self._spec.hidden_size)}
            return self._whole.bytes_of(shapes, size) + self._whole.bytes_of(head, size)
        return self._whole.bytes_of(shapes | head, size)

    def parts(self) -> LayerTensors:
        """See `Weights`. Each rank has all tensors outside of layers."""
        return self._whole.parts()

    def layers(self) -> Iterator[LayerWeights]:
        """Yield the weights of every layer in order, reading a few layers ahead. Raises ModelError
        if a split would cut a quantization group of columns."""
        return prefetch_layers(self.layer, len(self._spec.layers))

    def layer(self, index: int) -> LayerWeights:
        """Return the rank's weights of layer `index`."""
        whole, share, names = self._whole.layer(index), self._slices[index], self._whole.names
        prefix = names.layer.format(index)
        qkv, out = whole.qkv, whole.output
        gate_up, down, experts = whole.gate_up, whole.down, whole.experts
        projections = (share.q, share.kv, share.kv)
        return replace(
            whole,
            qkv=None if qkv is None else _rows(qkv, projections[: len(qkv.parts)]),
            output=None if out is None else self._columns(out, share.q, prefix + names.output),
            mixer=self._mixer(self._spec.layers[index].mixer, whole.mixer, prefix),
            gate_up=None if gate_up is None else _rows(gate_up, (share.ff,) * len(gate_up.parts)),
            down=None if down is None else self._columns(down, share.ff, prefix + names.down),
            experts=None if experts is None else self._experts(experts, prefix),
            shared=None if whole.shared is None else self._shared(whole.shared, prefix),
            sinks=None if whole.sinks is None else whole.sinks[self._heads],
        )

    def _mixer(self, spec: MixerSpec | None, weights: Any, prefix: str) -> Any:
        if spec is None:
            return None
        assert isinstance(spec, DivisibleMixerSpec), "shard_spec refused the model"

        def columns(linear: Linear, part: slice, role: str) -> Linear:
            name = self._whole.names.mixer[role].removesuffix(".weight")
            return self._columns(linear, part, prefix + name)

        return spec.shard_weights(weights, self._rank, self._count, columns)

    def _experts(self, whole: Experts, prefix: str) -> Experts:
        ff = whole.shape[1]
        inner = _even_slice(self._rank, ff // self._count)
        opening = whole.gate_up_bias
        if opening is not None:
            parts = np.split(opening, 2 if whole.gate else 1, axis=1)
            opening = np.concatenate([part[:, inner] for part in parts], 1)
        name = prefix + self._whole.names.expert_down
        return replace(
            whole,
            gate=tuple(row_range(gate, inner) for gate in whole.gate),
            up=tuple(row_range(up, inner) for up in whole.up),
            down=tuple(
                self._matrix_columns(down, inner, name.format(expert))
                for expert, down in enumerate(whole.down)
            ),
            gate_up_bias=opening,
            down_bias=None if whole.down_bias is None else self._once(whole.down_bias),
        )

    def _shared(self, whole: SharedWeights, prefix: str) -> SharedWeights:
        inner = _even_slice(self._rank, whole.down.shape[1] // self._count)
        name = prefix + self._whole.names.shared_down
        return replace(
            whole,
            gate_up=_rows(whole.gate_up, (inner,) * len(whole.gate_up.parts)),
            down=self._columns(whole.down, inner, name),
        )

    def _once(self, bias: Vector) -> Vector:
        """Return the bias that this rank adds to its partial sum: `bias` on rank 0, zeros on other
        ranks."""
        return bias if self._rank == 0 else np.zeros_like(bias)

    def _columns(self, linear: Linear, columns: slice, name: str) -> Linear:
        """Return the given columns of a linear layer, whose result is then a partial sum. Only rank
        0 adds the bias."""
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
    """Return some rows of each part of a linear layer. `rows`: one slice per part."""
    parts = tuple(row_range(part, own) for part, own in zip(linear.parts, rows, strict=True))
    if linear.bias is None:
        return Linear(parts)
    ends = np.cumsum([part.shape[0] for part in linear.parts])
    biases = np.split(linear.bias, ends[:-1])
    return Linear(parts, np.concatenate([b[own] for b, own in zip(biases, rows, strict=True)]))
