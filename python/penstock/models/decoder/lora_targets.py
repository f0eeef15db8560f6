"""The linear layers of a decoder to which LoRA adapters may apply, fused as in the decoder."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from penstock.models.decoder.spec import DecoderSpec, LayerSpec

FUSED_PROJECTIONS: Final = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The projections that each linear layer of a decoder layer fuses, in the order of their rows."""

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""Indices in FUSED_PROJECTIONS. In the whole decoder, linear layer `which` of decoder layer i has
the number first_linears[i] + which."""


def fused_projections(layer: LayerSpec) -> tuple[tuple[str, ...], ...]:
    """Return the entries of FUSED_PROJECTIONS that adapters may change in a decoder layer. In a
    mixture of experts, these are only the attention projections."""
    return FUSED_PROJECTIONS if layer.experts is None else FUSED_PROJECTIONS[:GATE_UP]


def first_linears(spec: DecoderSpec) -> tuple[int, ...]:
    """Return the number of each decoder layer's first linear layer, counted over the whole
    decoder."""
    return tuple(accumulate((len(fused_projections(layer)) for layer in spec.layers), initial=0))[
        :-1
    ]


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return (input size, output sizes of the fused projections) of each linear layer of a
    decoder."""
    sizes = (
        (spec.hidden_size, (spec.q_rows, spec.kv_rows, spec.kv_rows)),
        (spec.q_rows, (spec.hidden_size,)),
        (spec.hidden_size, (spec.intermediate_size, spec.intermediate_size)),
        (spec.intermediate_size, (spec.hidden_size,)),
    )
    return tuple(size for layer in spec.layers for size in sizes[: len(fused_projections(layer))])


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """Return the bytes of an adapter of rank `rank` on all projections, with `item_bytes` per
    element."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )
