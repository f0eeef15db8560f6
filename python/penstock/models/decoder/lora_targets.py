"""The linear layers of a decoder that LoRA adapters may change, fused as the decoder fuses them."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from penstock.models.decoder.spec import DecoderSpec, LayerSpec

FUSED_PROJECTIONS: Final = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The projections of each linear layer of a decoder layer, in the order of their rows."""

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""Indices in FUSED_PROJECTIONS: linear layer `which` of decoder layer i has number
first_linears[i] + which."""


def fused_projections(layer: LayerSpec) -> tuple[tuple[str, ...], ...]:
    """Return the entries of FUSED_PROJECTIONS that a decoder layer has. A mixture of experts has no
    feed-forward projections."""
    return FUSED_PROJECTIONS if layer.experts is None else FUSED_PROJECTIONS[:GATE_UP]


def first_linears(spec: DecoderSpec) -> tuple[int, ...]:
    """Return the number of the first linear layer of each decoder layer."""
    return tuple(accumulate((len(fused_projections(layer)) for layer in spec.layers), initial=0))[
        :-1
    ]


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the input size of each linear layer of a decoder, and the output sizes of its
    projections."""
    sizes = (
        (spec.hidden_size, (spec.q_rows, spec.kv_rows, spec.kv_rows)),
        (spec.q_rows, (spec.hidden_size,)),
        (spec.hidden_size, (spec.intermediate_size, spec.intermediate_size)),
        (spec.intermediate_size, (spec.hidden_size,)),
    )
    return tuple(size for layer in spec.layers for size in sizes[: len(fused_projections(layer))])


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """Return the bytes of an adapter of `rank` on all projections."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )
