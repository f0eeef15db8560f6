"""Where adapters of low rank come into a decoder: the linear layers, fused as it has them."""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from penstock.models.decoder.spec import DecoderSpec, LayerSpec

FUSED_PROJECTIONS: Final = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The projections of each linear layer of a decoder layer, in the order of its rows."""

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""Their places: linear layer `which` of decoder layer i has number first_linears[i] + which."""


def fused_projections(layer: LayerSpec) -> tuple[tuple[str, ...], ...]:
    """Those of FUSED_PROJECTIONS that a decoder layer has: a mixture of experts has no
    feed-forward."""
    return FUSED_PROJECTIONS if layer.experts is None else FUSED_PROJECTIONS[:GATE_UP]


def first_linears(spec: DecoderSpec) -> tuple[int, ...]:
    """The number of the first linear layer of each decoder layer."""
    return tuple(accumulate((len(fused_projections(layer)) for layer in spec.layers), initial=0))[
        :-1
    ]


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Of each linear layer of a decoder: its inputs, and the outputs of its projections."""
    sizes = (
        (spec.width, (spec.q_rows, spec.kv_rows, spec.kv_rows)),
        (spec.q_rows, (spec.width,)),
        (spec.width, (spec.ff, spec.ff)),
        (spec.ff, (spec.width,)),
    )
    return tuple(size for layer in spec.layers for size in sizes[: len(fused_projections(layer))])


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """What an adapter of `rank` on all projections takes."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )
