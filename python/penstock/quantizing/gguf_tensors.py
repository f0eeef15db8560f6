"""The tensors of a GGUF file, and the tensors of a Hugging Face folder from which each is made.

Both sides have the same roles, whose names a family states once for folders and once for GGUF files
(`TensorNames`). Projections that are one tensor on one side may be several on the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.base.errors import ModelError
from penstock.models.checkpoint.check_shapes import Shape
from penstock.models.configuration.family import GgufDecoder
from penstock.models.decoder.experts_spec import ExpertsSpec
from penstock.models.decoder.head_rows import deinterleaved_rows
from penstock.models.decoder.mixer import WritableMixerSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.models.decoder.tensor_names import TensorNames
from penstock.models.decoder.tensor_shapes import expected_shapes
from penstock.models.loader.folder_tensors import FolderDecoder

Order = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tensor of a folder, or of each matrix of a stack.

    - `name`: {} is the number of an expert.
    - `rows`: None: all.
    - `order`: the order of these rows in the GGUF file; None: theirs.
    """

    name: str
    rows: slice | None = None
    order: Order | None = None


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file.

    - `shape`: [N], [N, C] or, for a stack of matrices, [E, N, C].
    - `pieces`: what it joins by rows.
    - `mixer`: the layer and the role of a tensor of a mixer, which has no pieces.
    - `is_matrix`: whether it takes part in matrix products; False: its numbers are float32.
    - `offset`: is added to each number.
    """

    name: str
    shape: Shape
    pieces: tuple[Piece, ...] = ()
    mixer: tuple[int, str] | None = None
    is_matrix: bool = False
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class _Role:
    """A projection of a layer: its field in TensorNames, its rows, and their order."""

    field: str
    rows: int
    order: Order | None = None


def gguf_tensors(decoder: FolderDecoder, family: GgufDecoder) -> dict[str, GgufTensor]:
    """Return the tensors of the GGUF file of a decoder, by name. Raises ModelError naming a tensor
    of the folder that has no name there, or a mixer that has no form there."""
    return _Tensors(decoder, family).all()


def gguf_form(decoder: FolderDecoder) -> DecoderSpec:
    """Return the spec of a decoder with its mixers as GGUF files store them. Raises ModelError for
    a mixer without such a form."""
    layers = []
    for layer in decoder.spec.layers:
        if layer.mixer is None or not layer.has_mixer:
            layers.append(layer)
            continue
        form = layer.mixer.gguf_form if isinstance(layer.mixer, WritableMixerSpec) else None
        if form is None:
            raise ModelError(
                f"{decoder.checkpoint.path}: the family {decoder.spec.architecture} with"
                f" {type(layer.mixer).__name__} is not written as GGUF"
            )
        layers.append(replace(layer, mixer=form))
    return replace(decoder.spec, layers=tuple(layers))


class _Tensors:
    """Collects the tensors role by role."""

    def __init__(self, decoder: FolderDecoder, family: GgufDecoder) -> None:
        self._decoder = decoder
        self._spec, self._own = decoder.spec, decoder.names
        self._new = _with_joined_qkv(family.names, decoder.names)
        self._permuted = family.permuted_qk and not decoder.spec.interleaved_rope
        self._form = gguf_form(decoder)
        self._existing = expected_shapes(self._own, self._spec)
        self._wanted = expected_shapes(self._new, self._form)
        self._found: dict[str, GgufTensor] = {}
        self._used: set[str] = set()

    def all(self) -> dict[str, GgufTensor]:
        own, new = self._own, self._new
        for field in ("embedding", "head"):
            for ending in ("weight", "bias"):
                self._whole(f"{getattr(own, field)}.{ending}", f"{getattr(new, field)}.{ending}")
        self._norm("", "", "final_norm")
        self._parts("", "", own.model_parts, new.model_parts)
        for index, layer in enumerate(self._spec.layers):
            self._layer(index, layer)
        for name in self._existing:
            if name not in self._used:
                raise ModelError(
                    f"{self._decoder.checkpoint.path}: {name}: has no name in GGUF files"
                )
        for name in self._wanted:
            if name not in self._found:
                raise ModelError(
                    f"{self._decoder.checkpoint.path}: nothing gives {name} of a GGUF file"
                )
        return self._found

    def _layer(self, index: int, layer: LayerSpec) -> None:
        old, new = self._own.layer.format(index), self._new.layer.format(index)
        if layer.has_attention:
            self._attention(old, new, layer)
        elif layer.has_mixer:
            self._mixer(index, old, new)
        for field in ("attention_norm", "attention_post_norm"):
            if layer.has_mixer:
                self._norm(old, new, field)
        for field in ("mlp_norm", "mlp_post_norm"):
            if layer.has_feed_forward and not self._spec.parallel:
                self._norm(old, new, field)
        if layer.is_dense:
            width = self._spec.feed_forward_size(layer)
            gates = [_Role("gate", width)] if self._spec.gated else []
            self._linear(old, new, [*gates, _Role("up", width)])
            self._linear(old, new, [_Role("down", 0)])
        if layer.has_feed_forward and layer.experts is not None:
            self._experts(old, new, layer.experts)
        self._parts(old, new, self._own.layer_parts, self._new.layer_parts)

    def _attention(self, old: str, new: str, layer: LayerSpec) -> None:
        spec = self._spec
        heads, kv_heads, dim = spec.heads(layer)
        rows = spec.qkv_rows(layer)
        orders: list[Order | None] = [None, None, None]
        if self._permuted:
            rotated = spec.layer_rope(layer).rotary_dim
            orders[:2] = [
                np.argsort(deinterleaved_rows(count, dim, rotated)) for count in (heads, kv_heads)
            ]
        in_file = (2 * rows[0] if spec.output_gate else rows[0], *rows[1:])
        roles = zip(("q", "k", "v"), in_file, orders, strict=True)
        self._linear(old, new, [_Role(*role) for role in roles if role[1]])
        self._linear(old, new, [_Role("output", 0)])
        for field in ("q_norm", "k_norm"):
            if spec.qk_norm:
                self._norm(old, new, field)
        if spec.sinks:
            self._whole(old + self._own.sinks, new + self._new.sinks)

    def _mixer(self, index: int, old: str, new: str) -> None:
        mixer, form = self._spec.layers[index].mixer, self._form.layers[index].mixer
        assert mixer is not None and form is not None
        self._used.update(old + self._own.mixer[role] for role in mixer.shapes(self._spec))
        for role, shape in form.shapes(self._form).items():
            if role not in self._new.mixer:
                raise ModelError(
                    f"{self._decoder.checkpoint.path}: {old}{self._own.mixer[role]}: has no name in"
                    " GGUF files"
                )
            name = new + self._new.mixer[role]
            is_matrix = role in (*form.linears, *form.float_matrices)
            self._found[name] = GgufTensor(name, shape, (), (index, role), is_matrix)

    def _experts(self, old: str, new: str, experts: ExpertsSpec) -> None:
        size, shared = experts.intermediate_size, experts.shared_size
        self._linear(old, new, [_Role("router", 0)])
        for prefix, width in (("expert", size), ("shared", shared)):
            gates = [_Role(f"{prefix}_gate", width)] if experts.gated else []
            if width:
                self._linear(old, new, [*gates, _Role(f"{prefix}_up", width)])
                self._linear(old, new, [_Role(f"{prefix}_down", 0)])
        if experts.shared_gated:
            self._linear(old, new, [_Role("shared_router", 0)])
        for field, present in (
            ("router_bias", experts.correction_bias),
            ("expert_scale", experts.expert_scale),
        ):
            if present:
                self._whole(old + getattr(self._own, field), new + getattr(self._new, field))

    def _parts(self, old: str, new: str, own: object, other: object) -> None:
        """Add the tensors of the blocks that only some decoders have: role -> name."""
        assert isinstance(own, dict) and isinstance(other, dict)
        for role, name in own.items():
            if role in other:
                offset = self._spec.norm_offset if role.endswith("norm") else 0.0
                self._whole(old + name, new + other[role], offset)

    def _norm(self, old: str, new: str, field: str) -> None:
        own, other = getattr(self._own, field), getattr(self._new, field)
        self._whole(
            old + self._own.norm_weight(own),
            new + self._new.norm_weight(other),
            self._spec.norm_offset,
        )
        self._whole(f"{old}{own}.bias", f"{new}{other}.bias")

    def _whole(self, own: str, new: str, offset: float = 0.0) -> None:
        """Add a tensor that is the same in the folder, if that has it."""
        if self._has(own) and own not in self._used:
            self._add(new, (Piece(own),), offset)

    def _linear(self, old: str, new: str, roles: Sequence[_Role]) -> None:
        """Add linear layers, of which several may be one tensor on either side."""
        for ending in ("weight", "bias"):
            owns = [f"{old}{getattr(self._own, role.field)}.{ending}" for role in roles]
            news = [f"{new}{getattr(self._new, role.field)}.{ending}" for role in roles]
            if not self._has(owns[0]):
                continue
            shared, ends = Counter(owns), Counter[str]()
            joined: dict[str, list[Piece]] = {}
            for own, name, role in zip(owns, news, roles, strict=True):
                rows = slice(ends[own], ends[own] + role.rows) if shared[own] > 1 else None
                ends[own] += role.rows
                joined.setdefault(name, []).append(Piece(own, rows, role.order))
            for name, pieces in joined.items():
                self._add(name, tuple(pieces))

    def _has(self, own: str) -> bool:
        return own.format(0) in self._existing

    def _add(self, new: str, pieces: tuple[Piece, ...], offset: float = 0.0) -> None:
        if new not in self._wanted:
            raise ModelError(
                f"{self._decoder.checkpoint.path}: {pieces[0].name}: has no name in GGUF files"
            )
        shape = self._wanted[new]
        is_matrix = len(shape) > 1 and new.endswith("weight")
        self._found[new] = GgufTensor(new, shape, pieces, None, is_matrix, offset)
        for piece in pieces:
            count = shape[0] if "{}" in piece.name else 1
            self._used.update(piece.name.format(number) for number in range(count))


def _with_joined_qkv(new: TensorNames, own: TensorNames) -> TensorNames:
    """Return the names `new` with queries, keys and values in one tensor, if the folder has them in
    one: llama.cpp's converters do not divide it."""
    if not own.q == own.k == own.v:
        return new
    return replace(new, q="attn_qkv", k="attn_qkv", v="attn_qkv")
