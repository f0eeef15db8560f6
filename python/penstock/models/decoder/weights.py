"""Reads the weights of a decoder from a checkpoint.

The checkpoint's header is first compared with the spec: a missing, unexpected or misshapen tensor
raises ModelError before any data is converted. Two threads then read the layers in order, a few
layers ahead. Reading thus overlaps with packing, and memory use stays near one copy of the weights.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np

from penstock.base.errors import ModelError
from penstock.kernels.isa.instruction_sets import MatrixForm
from penstock.kernels.weights import Dense, Float8, Linear, Matrix
from penstock.models.checkpoint.check_shapes import NO_TENSORS, Shape
from penstock.models.checkpoint.matrix_forms import matrix_forms
from penstock.models.decoder.altup import LayerAltUpWeights
from penstock.models.decoder.expert_weights import BesideNorms, read_experts, read_shared
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.head_rows import deinterleaved_rows, gated_rows
from penstock.models.decoder.layer_weights import LayerWeights, MatrixBytes
from penstock.models.decoder.mixer import LayerTensors, Vector
from penstock.models.decoder.per_layer_inputs import LayerInputWeights
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import (
    check_tensors,
    expected_shapes,
    float_matrices,
    matrix_shapes,
    quantizable_names,
)
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize
from penstock.quant.weight_slices import linear_rows, scaled, split_rows, take_rows

READ_THREADS = 2
PREFETCH_LAYERS = 3
INT16_GROUP = 64
"""The columns that share a scale of int16 weights."""


class DecoderWeights:
    """Reads the weights that `spec` requires from `checkpoint`.

    - `names`: the names of the tensors.
    - `dtype`: "f32" dequantizes every matrix; "auto" keeps the file's type.
    - `permuted_qk`: the file has the rows of q and k permuted for a rotation of neighbouring
      components; they are reordered when they are read.

    `read_ahead`: `layers` reads on threads of its own; if unset, on the calling thread alone.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: TensorNames,
        spec: DecoderSpec,
        dtype: Literal["auto", "f32"],
        permuted_qk: bool = False,
        also_expected: Mapping[str, Shape] = NO_TENSORS,
    ) -> None:
        """Check the checkpoint's header. `also_expected`: further tensors that must exist, which
        the caller reads. Raises ModelError naming a tensor that is missing, unexpected or of the
        wrong shape."""
        self.path = checkpoint.path
        self.read_ahead = True
        self._checkpoint = checkpoint
        self.names = names
        self.spec = spec
        self._dtype = dtype
        self._permuted_qk = permuted_qk or spec.interleaved_rope
        check_tensors(checkpoint, names, spec, also_expected)
        self._float_matrices = float_matrices(names, spec)
        self._shapes = expected_shapes(names, spec)
        vectors = self._shapes.keys() - matrix_shapes(names, spec).keys()
        self._vectors = vectors - self._float_matrices

    def embedding(self) -> Matrix:
        """Return the embedding [V, W]. Raises ModelError if it is stored as 8-bit floats, which are
        supported only in matrix products."""
        name = f"{self.names.embedding}.weight"
        table = self.matrix(name)
        if isinstance(table, Float8):
            raise ModelError(
                f"{self._checkpoint.path}: {name}: an embedding of 8-bit floats is not supported"
            )
        return table

    def head(self) -> Linear | None:
        """Return the language-model head [V, W], or None if it is the embedding matrix."""
        if self.spec.tied_head:
            return None
        matrix = self.matrix(f"{self.names.head}.weight")
        if not self.spec.head_bias:
            return Linear((matrix,))
        return Linear((matrix,), self._checkpoint.vector(f"{self.names.head}.bias"))

    def final_norm(self) -> Vector:
        """Return the weight [W] of the final norm, or its weight and its bias [2, W], multiplied by
        `DecoderSpec.logit_scale`."""
        norm: Vector = self._norm(self.names.final_norm) * np.float32(self.spec.logit_scale)
        return norm

    def rope_factors(self) -> Vector | None:
        """See `Weights`. Raises ModelError for a divisor that is not positive."""
        name = self.names.rope_factors
        if name is None or name not in self._checkpoint.tensors:
            return None
        factors = self._checkpoint.vector(name)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ModelError(f"{self._checkpoint.path}: {name}: not all values are positive")
        return factors

    def forms(self) -> tuple[MatrixForm, ...]:
        """See `Weights`."""
        shapes = matrix_shapes(self.names, self.spec)
        return matrix_forms(self._checkpoint, shapes, self._as_asked)

    def main_type(self) -> str:
        """Return the type of most of the matrices' elements, in the notation of the file."""
        counts: dict[str, int] = {}
        for name in matrix_shapes(self.names, self.spec):
            info = self._checkpoint.tensors[name]
            if len(info.shape) > 1:
                counts[info.type_name] = counts.get(info.type_name, 0) + math.prod(info.shape)
        return max(counts, key=lambda kind: counts[kind])

    def packed_bytes(self, size: MatrixBytes) -> int:
        """See `Weights`."""
        return self.bytes_of(expected_shapes(self.names, self.spec), size)

    def float8_savings(self, size: MatrixBytes, part: DecoderSpec | None = None) -> int:
        """See `Weights`. `part`: the spec of a tensor parallel shard, to compute the savings of
        that shard."""
        expected, rounded = expected_shapes(self.names, part or self.spec), {}
        for name in quantizable_names(self.names, self.spec):
            info = self._checkpoint.tensors.get(name)
            if info is not None and info.type_name in ("F32", "F16", "BF16"):
                rounded[name] = expected[name]
        in_8_bits = sum(math.prod(rows) * (width + 4) for *rows, width in rounded.values())
        return self.bytes_of(rounded, size) - in_8_bits

    def bytes_of(self, shapes: Mapping[str, Shape], size: MatrixBytes) -> int:
        """Return the packed bytes of whole tensors or of shards of them. `shapes`: tensor name ->
        shape of the shard. `size`: see `packed_bytes`."""
        each: dict[tuple[str, Shape], Fraction] = {}  # (type, shape) -> bytes per element
        taken = 0
        for name, shape in shapes.items():
            if len(shape) == 1 or name.endswith(".bias") or name in self._vectors:
                taken += 4 * math.prod(shape)
                continue
            info = self._checkpoint.tensors[name]
            if name in self._float_matrices:
                taken += self._float_bytes(info.type_name) * math.prod(shape)
                continue
            alike = info.type_name, info.shape
            if alike not in each:
                pattern = self._as_asked(self._checkpoint.layout_sample(name))
                each[alike] = Fraction(size(pattern), math.prod(pattern.shape))
            taken += math.ceil(each[alike] * math.prod(shape))
        return taken

    def widened_bytes(self) -> int:
        """Return the bytes by which matrices that are stored as floats exceed those of the file."""
        infos = [self._checkpoint.tensors[name] for name in self._float_matrices]
        held = (self._float_bytes(info.type_name) * math.prod(info.shape) for info in infos)
        return sum(held) - sum(info.size_bytes for info in infos)

    def int16_bytes(self) -> int:
        """Return the bytes by which matrices of 16-bit floats grow on CPUs that pack them as int16
        (`csrc/cpu/pack/packed_tile.h`): a float32 scale per 64 columns of a row, and columns up to
        a multiple of 32."""
        grown = 0
        for name, (*outer, columns) in matrix_shapes(self.names, self.spec).items():
            if not outer:
                continue  # a vector
            sample = self._as_asked(self._checkpoint.layout_sample(name))
            if isinstance(sample, Dense) and sample.dtype != "f32":
                scales = 4 * -(-columns // INT16_GROUP)
                grown += math.prod(outer) * (scales + 2 * (-columns % 32))
        return grown

    def _float_bytes(self, type_name: str) -> int:
        """Return the bytes per element of a matrix that is stored as floats."""
        return 4 if self._dtype == "f32" or type_name == "F32" else 2

    def layers(self) -> Iterator[LayerWeights]:
        """Yield the weights of every layer in order, reading a few layers ahead if `read_ahead` is
        set."""
        count = len(self.spec.layers)
        return (
            prefetch_layers(self.layer, count) if self.read_ahead else map(self.layer, range(count))
        )

    def layer(self, index: int) -> LayerWeights:
        """Read the weights of layer `index`."""
        own = self.spec.layers[index]
        prefix = self.names.layer.format(index)
        weights = LayerWeights()
        if own.has_mixer:
            weights = self._read_mixer(prefix, own)
        if own.has_feed_forward:
            weights = self._read_feed_forward(prefix, own, weights)
        return self._read_parts(prefix, weights)

    def mixer_tensors(self, index: int) -> LayerTensors:
        """Return the tensors of the mixer of layer `index`, by role."""
        return _LayerTensors(self, self.names.layer.format(index), self.names.mixer)

    def parts(self) -> LayerTensors:
        """See `Weights`."""
        return _LayerTensors(self, "", self.names.model_parts)

    def _read_parts(self, prefix: str, weights: LayerWeights) -> LayerWeights:
        """Return `weights` with those of the blocks that only some decoders have."""
        spec, tensors = self.spec, _LayerTensors(self, prefix, self.names.layer_parts)
        if spec.layer_scalars:
            weights = replace(weights, scalar=self._scalar(tensors))
        if spec.per_layer_inputs is not None:
            weights = replace(weights, input=LayerInputWeights.read(tensors))
        if spec.altup is not None:
            weights = replace(weights, altup=LayerAltUpWeights.read(spec.altup, tensors))
        return weights

    def _scalar(self, tensors: LayerTensors) -> float:
        scalar = float(tensors.array("layer_scalar")[0])
        if not math.isfinite(scalar):
            raise ModelError(f"{self.path}: the layer scalar {scalar} is not finite")
        return scalar

    def _read_mixer(self, prefix: str, own: LayerSpec) -> LayerWeights:
        names, spec = self.names, self.spec
        place = spec.layer_norms(own)
        norms = LayerWeights(
            attention_norm=self._norm(prefix + names.attention_norm) if place != "post" else None,
            attention_post_norm=self._norm(prefix + names.attention_post_norm)
            if place != "pre"
            else None,
        )
        if own.mixer is not None:
            tensors = _LayerTensors(self, prefix, names.mixer)
            return replace(norms, mixer=own.mixer.read(tensors, spec))
        gate = None
        if spec.output_gate:
            qkv, gate = self._gated_qkv(prefix, own)
        else:
            qkv = self._qkv(prefix, own)
        return replace(
            norms,
            qkv=qkv,
            output_gate=gate,
            q_norm=self._norm_weight(prefix + names.q_norm) if spec.qk_norm else None,
            k_norm=self._norm_weight(prefix + names.k_norm)
            if spec.qk_norm and own.attention.cache_of is None
            else None,
            output=self._linear(prefix, names.output, spec.output_bias),
            sinks=self._checkpoint.vector(prefix + names.sinks) if spec.sinks else None,
        )

    def _read_feed_forward(
        self, prefix: str, own: LayerSpec, weights: LayerWeights
    ) -> LayerWeights:
        names, spec = self.names, self.spec
        place = spec.layer_norms(own)
        before = place != "post" and not spec.parallel
        normed = replace(
            weights,
            mlp_norm=self._norm(prefix + names.mlp_norm) if before else None,
            mlp_post_norm=self._norm(prefix + names.mlp_post_norm) if place != "pre" else None,
        )
        if own.is_dense:
            gate_up, down = self._gate_up(prefix, own), self._down(prefix)
            normed = replace(normed, gate_up=gate_up, down=down)
        return normed if own.experts is None else self._read_mixture(prefix, own.experts, normed)

    def _read_mixture(
        self, prefix: str, mixture: ExpertsSpec, weights: LayerWeights
    ) -> LayerWeights:
        names = self.names
        bias, scale = prefix + names.router_bias, prefix + names.expert_scale
        return replace(
            weights,
            router=replace(self._linear(prefix, names.router, mixture.biased), names=()),
            experts=read_experts(self, prefix, mixture),
            router_bias=self.row(bias).data[0] if mixture.correction_bias else None,
            expert_scale=self.row(scale).data[0] if mixture.expert_scale else None,
            shared=read_shared(self, prefix, mixture),
            beside=BesideNorms.read(
                _LayerTensors(self, prefix, names.layer_parts), self.spec.hidden_size
            )
            if mixture.beside_dense
            else None,
        )

    def _norm(self, name: str) -> Vector:
        """Read a norm of the residual stream: [W], or [2, W] with its bias."""
        weight = self._norm_weight(name)
        if not self.spec.norm_bias:
            return weight
        return np.stack([weight, self._checkpoint.vector(f"{name}.bias")])

    def _norm_weight(self, name: str) -> Vector:
        weight = self._checkpoint.vector(self.names.norm_weight(name))
        return weight + np.float32(self.spec.norm_offset) if self.spec.norm_offset else weight

    def matrix(self, name: str) -> Matrix:
        """Read a matrix in the type that `dtype` asks for. Raises ModelError naming the tensor."""
        return self._as_asked(self._checkpoint.matrix(name))

    def stack(self, name: str) -> tuple[Matrix, ...]:
        """Read a tensor [E, N, C] as E matrices, as `matrix` does."""
        return tuple(map(self._as_asked, self._checkpoint.stack(name)))

    def row(self, name: str) -> Dense:
        """Read a vector [C] or a matrix of one row as a matrix [1, C] float32. Raises ModelError
        naming the tensor."""
        return Dense(self.array(name).reshape(1, -1), "f32")

    def array(self, name: str) -> Vector:
        """Read a tensor of any rank as float32, in the shape that the model expects: the file may
        have a vector as a matrix of one row. Raises ModelError naming the tensor."""
        shape = self._checkpoint.tensors[name].shape
        if len(shape) == 1:
            values = self._checkpoint.vector(name)
        elif len(shape) == 2:
            values = dequantize(self._checkpoint.matrix(name))
        else:
            values = dequantize(self._checkpoint.flattened(name))
        return values.reshape(self._shapes.get(name, shape))

    def has(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor."""
        return name in self._checkpoint.tensors

    def _as_asked(self, matrix: Matrix) -> Matrix:
        return Dense(dequantize(matrix), "f32") if self._dtype == "f32" else matrix

    def _linear(self, prefix: str, name: str, biased: bool) -> Linear:
        return self.fused(prefix, ((name, 0),), biased)

    def fused(self, prefix: str, parts: Sequence[tuple[str, int]], biased: bool) -> Linear:
        """Read projections of a layer and return them as one linear layer. `parts`: (name, number
        of rows) of each projection; projections with equal names are one tensor in the file."""
        names = list(dict.fromkeys(name for name, _ in parts))
        matrices: list[Matrix] = []
        for name in names:
            sizes = [rows for own, rows in parts if own == name]
            matrices += split_rows(self.matrix(f"{prefix}{name}.weight"), sizes)
        bias = self._biases(prefix, names) if biased else None
        tensors = tuple(f"{prefix}{name}.weight" for name in names)
        return Linear(tuple(matrices), bias, names=tensors)

    def _biases(self, prefix: str, names: Sequence[str]) -> Vector:
        return np.concatenate([self._checkpoint.vector(f"{prefix}{name}.bias") for name in names])

    def _gate_up(self, prefix: str, own: LayerSpec) -> Linear:
        names, spec = self.names, self.spec
        ff, factor = spec.feed_forward_size(own), spec.gate_factor
        gate = ((names.gate, ff),) if spec.gated else ()
        fused = self.fused(prefix, (*gate, (names.up, ff)), spec.mlp_bias)
        if factor == 1.0 or not spec.gated:
            return fused
        first, up = fused.parts
        bias = fused.bias
        if bias is not None:
            bias = bias * np.repeat(np.array([factor, 1], np.float32), ff)
        return replace(fused, parts=(scaled(first, factor), up), bias=bias)

    def _down(self, prefix: str) -> Linear:
        down = self._linear(prefix, self.names.down, self.spec.mlp_bias)
        factor = self.spec.down_factor
        bias = None if down.bias is None else down.bias * np.float32(factor)
        return replace(down, parts=tuple(scaled(part, factor) for part in down.parts), bias=bias)

    def _qkv(self, prefix: str, own: LayerSpec) -> Linear:
        names, spec = self.names, self.spec
        rows = spec.qkv_rows(own)
        projections = zip((names.q, names.k, names.v), rows, strict=True)
        parts = [(name, count) for name, count in projections if count]
        fused = self.fused(prefix, parts, spec.qkv_bias)
        if not self._permuted_qk:
            return fused
        heads, kv_heads, dim = spec.heads(own)
        rotated = spec.layer_rope(own).rotary_dim
        orders = [deinterleaved_rows(count, dim, rotated) for count in (heads, kv_heads)]
        turned = [take_rows(*one) for one in zip(fused.parts[:2], orders, strict=False)]
        bias = fused.bias
        if bias is not None:
            split = np.split(bias, np.cumsum([count for _, count in parts])[:-1])
            ordered = [one[order] for one, order in zip(split[:2], orders, strict=False)]
            bias = np.concatenate([*ordered, *split[2:]])
        return replace(fused, parts=(*turned, *fused.parts[2:]), bias=bias)

    def _gated_qkv(self, prefix: str, own: LayerSpec) -> tuple[Linear, Linear]:
        """Return q, k and v, and the gate of the output, whose rows are beside those of q."""
        names, spec = self.names, self.spec
        whole = self._linear(prefix, names.q, spec.qkv_bias)
        heads, _, dim = spec.heads(own)
        q, gate = (linear_rows(whole, rows) for rows in gated_rows(heads, dim))
        _, keys, values = spec.qkv_rows(own)
        parts = (names.k, keys), (names.v, values)
        kv = self.fused(prefix, parts, spec.qkv_bias)
        bias = None
        if q.bias is not None and kv.bias is not None:
            bias = np.concatenate([q.bias, kv.bias])
        return Linear((*q.parts, *kv.parts), bias, names=(*q.names, *kv.names)), gate


class _LayerTensors:
    """Reads tensors of `weights` by their roles in `names`, after `prefix`. See `LayerTensors`."""

    def __init__(self, weights: DecoderWeights, prefix: str, names: Mapping[str, str]) -> None:
        self._weights = weights
        self._prefix = prefix
        self._names = names

    def linear(self, *roles: str, bias: str | None = None) -> Linear:
        matrices = tuple(map(self.matrix, roles))
        tensors = tuple(map(self._name, roles))
        return Linear(matrices, None if bias is None else self.array(bias), names=tensors)

    def matrix(self, role: str) -> Matrix:
        return self._weights.matrix(self._name(role))

    def stack(self, role: str) -> tuple[Matrix, ...]:
        name = self._name(role)
        if "{}" not in name:
            return self._weights.stack(name)
        each = itertools.takewhile(self._weights.has, map(name.format, itertools.count()))
        return tuple(map(self._weights.matrix, each))

    def array(self, role: str) -> Vector:
        return self._weights.array(self._name(role))

    def norm(self, role: str) -> Vector:
        norm: Vector = self.array(role) + np.float32(self._weights.spec.norm_offset)
        return norm

    def has(self, role: str) -> bool:
        return self._weights.has(self._prefix + self._names.get(role, "-"))

    def _name(self, role: str) -> str:
        return self._prefix + self._names[role]


def prefetch_layers(read: Callable[[int], LayerWeights], count: int) -> Iterator[LayerWeights]:
    """Yield `read(index)` for each index in 0 .. count - 1, reading a few layers ahead on
    threads."""
    with ThreadPoolExecutor(READ_THREADS, "read-weights") as pool:
        ahead: deque[Future[LayerWeights]] = deque()
        for index in range(count):
            ahead.append(pool.submit(read, index))
            if len(ahead) > PREFETCH_LAYERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
