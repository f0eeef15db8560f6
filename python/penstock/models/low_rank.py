"""Where adapters of low rank come into a decoder: the linear layers, fused as it has them."""

from __future__ import annotations

from typing import Final

from penstock.models.spec import DecoderSpec

SLICES: Final = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""The projections of each linear layer of a decoder layer, in the order of its rows."""

QKV, OUTPUT, GATE_UP, DOWN = range(4)
"""Their places: linear layer `which` of decoder layer i has number i * 4 + which."""


def linear_sizes(spec: DecoderSpec) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Of each linear layer of a decoder: its inputs, and the outputs of its projections."""
    layer = (
        (spec.width, (spec.q_rows, spec.kv_rows, spec.kv_rows)),
        (spec.q_rows, (spec.width,)),
        (spec.width, (spec.ff, spec.ff)),
        (spec.ff, (spec.width,)),
    )
    return layer * len(spec.layers)


def adapter_bytes(spec: DecoderSpec, rank: int, item_bytes: int) -> int:
    """What an adapter of `rank` on all projections takes."""
    return sum(
        item_bytes * rank * (inputs + outputs)
        for inputs, rows in linear_sizes(spec)
        for outputs in rows
    )
