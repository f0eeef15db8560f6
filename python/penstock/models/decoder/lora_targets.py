"""The linear layers of a decoder to which LoRA adapters may apply, fused as in the decoder."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from penstock.models.decoder.spec import DecoderSpec, LayerSpec

FUSED_PROJECTIONS: Final = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The projections that each linear layer of a decoder layer fuses, in the order of their rows. A
feed-forward without a gate has only up."""

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""Indices in FUSED_PROJECTIONS. In the whole decoder, linear layer `which` of decoder layer i has
the number first_linears(spec)[i] + which."""


def fused_projections(spec: DecoderSpec, layer: LayerSpec) -> tuple[tuple[str, ...], ...]:
    """Return the entries of FUSED_PROJECTIONS that adapters may change in a decoder layer: those of
    attention, without projections that the layer lacks, and of a dense feed-forward."""
    shares = layer.attention.cache_of is not None
    lacking = {
        "k": shares,
        "v": shares or layer.attention.keys_are_values,
        "gate": not spec.gated,
    }
    return tuple(
        tuple(name for name in FUSED_PROJECTIONS[which] if not lacking.get(name))
        for which in _adaptable(layer)
    )


def first_linears(spec: DecoderSpec) -> tuple[int, ...]:
    """Return for each decoder layer the number to which the index of a linear layer in
    FUSED_PROJECTIONS is added, to get its number in the whole decoder."""
    counts = (len(_adaptable(layer)) for layer in spec.layers)
    starts = tuple(accumulate(counts, initial=0))[:-1]
    return tuple(
        start - (0 if layer.has_attention else GATE_UP)
        for start, layer in zip(starts, spec.layers, strict=True)
    )


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (input size, output sizes of the fused projections) of each linear layer of a
    decoder."""

    def size(layer: LayerSpec, which: int) -> tuple[int, tuple[int, ...]]:
        ff, rows = spec.feed_forward_size(layer), spec.qkv_rows(layer)
        sizes = (
            (spec.hidden_size, tuple(count for count in rows if count)),
            (rows[0], (spec.hidden_size,)),
            (spec.hidden_size, (ff, ff) if spec.gated else (ff,)),
            (ff, (spec.hidden_size,)),
        )
        return sizes[which]

    return tuple(size(layer, which) for layer in spec.layers for which in _adaptable(layer))


def _adaptable(layer: LayerSpec) -> tuple[int, ...]:
    """Return the indices in FUSED_PROJECTIONS of the linear layers that adapters may change."""
    attention = (QKV, OUTPUT) if layer.has_attention else ()
    return (*attention, *((GATE_UP, DOWN) if layer.is_dense else ()))


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """Return the bytes of an adapter of rank `rank` on all projections, with `item_bytes` per
    element."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )
