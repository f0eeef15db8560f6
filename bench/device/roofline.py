"""The least time of a step or a run on a device with given peak rates.

Weights, cache and recurrent states are read once; products run at the measured rate.
"""

from __future__ import annotations

from typing import Protocol

from bench.device.machine import Roofline


class Shape(Protocol):
    """The sizes of a model from which its floors follow: those of `model_shapes.Shape`, and those
    of `layered_models.LayeredShape`."""

    @property
    def head_weights(self) -> int: ...

    @property
    def token_operations(self) -> int: ...

    @property
    def token_bytes(self) -> int: ...

    @property
    def row_bytes(self) -> float: ...

    def step_bytes(self, tokens: float) -> float: ...

    def layer_bytes(self, tokens: float) -> float: ...


class AdaptedShape(Protocol):
    @property
    def adapter_columns(self) -> int: ...


def decode_s(shape: Shape, rows: int, context: float, roofline: Roofline) -> float:
    """Return the floor of a decode step of `rows` rows with `context` tokens each. Attention and
    scans run between products, so the bytes of caches and of recurrent states add."""
    operations = rows * (shape.token_operations + 2 * shape.head_weights)
    moved = rows * (context * shape.token_bytes + shape.row_bytes)
    return roofline.floor_s(shape.step_bytes(rows), operations) + moved / roofline.bytes_s


def adapters_s(shape: AdaptedShape, rank: int, adapters: int, roofline: Roofline) -> float:
    """Return the time that `adapters` adapters on all projections, in 16 bits, add to a step that
    uses them all."""
    return roofline.floor_s(2 * adapters * rank * shape.adapter_columns)


def prompt_s(shape: Shape, tokens: int, roofline: Roofline) -> float:
    """Return the floor of the products of `tokens` prompt tokens. Attention is left out: it is some
    percent at 1k. Float8 products are compared with the bfloat16 rate, which they may double."""
    return roofline.floor_s(shape.layer_bytes(tokens), tokens * shape.token_operations)


def run_s(shape: Shape, rows: int, prompt: int, new: int, roofline: Roofline) -> float:
    """Return the floor of `rows` requests at once, with `prompt` tokens in and `new` tokens out."""
    mean_context = prompt + new / 2
    steps = new * decode_s(shape, rows, mean_context, roofline)
    return rows * prompt_s(shape, prompt, roofline) + steps
