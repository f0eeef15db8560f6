"""The distinct attentions of a model: the head sizes and the window of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from penstock.kernels.latent_ops import LatentSizes
from penstock.models.decoder.spec import DecoderSpec, LayerSpec

Heads: TypeAlias = tuple[int, int, int]

TILE_ROWS = 16
"""Least number of queries per KV head for which decode attention keeps the partial results of a
split context in steps with prefill."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes of one kind of attention.

    `heads`: query heads, KV heads and head dimension, or the sizes of a latent attention.
    `window`: as ops take it (`LayerSpec.reach`).
    """

    heads: Heads | LatentSizes
    window: int

    def part_elements(self, *, one_token: bool) -> int:
        """Return the most float32 elements of the partial results of one split of a row.
        `one_token`: the rows of the step have one token each."""
        if isinstance(self.heads, LatentSizes):
            queries = self.heads.heads if one_token else max(TILE_ROWS, self.heads.heads)
            return queries * (self.heads.latent + 2)
        heads, kv_heads, dim = self.heads
        shared = heads // kv_heads
        return kv_heads * (shared if one_token else max(TILE_ROWS, shared)) * (dim + 2)


def attention_shapes(spec: DecoderSpec) -> tuple[AttentionShape, ...]:
    """Return the distinct attentions of the layers, in the order of the layers."""
    found = (_shape_of(spec, layer) for layer in spec.layers)
    return tuple(dict.fromkeys(shape for shape in found if shape is not None))


def _shape_of(spec: DecoderSpec, layer: LayerSpec) -> AttentionShape | None:
    if not layer.has_mixer:
        return None
    if layer.mixer is None:
        return AttentionShape(spec.heads(layer), layer.reach)
    heads = layer.mixer.attention
    return None if heads is None else AttentionShape(heads, 0)
