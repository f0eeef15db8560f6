"""The least time that a step or a run can take on a device with given peak rates: weights and cache
are read once, products run at the measured rate (design/performance.md, 6.1)."""

from __future__ import annotations

from bench.device.machine import Roofline
from bench.device.model_shapes import Shape


def decode_s(shape: Shape, rows: int, context: float, limits: Roofline) -> float:
    """A decode step of `rows` rows with `context` tokens each. Attention comes between products,
    so its bytes add."""
    operations = rows * (shape.token_operations + 2 * shape.head_weights)
    return limits.floor_s(shape.step_bytes(rows), operations) + (
        rows * context * shape.token_bytes / limits.bytes_s
    )


def adapters_s(shape: Shape, rank: int, adapters: int, limits: Roofline) -> float:
    """What so many adapters on all projections, in 16 bits, add to a step whose rows have them."""
    return limits.floor_s(2 * adapters * rank * shape.adapter_columns)


def prompt_s(shape: Shape, tokens: int, limits: Roofline) -> float:
    """Products of `tokens` prompt tokens. Their attention is left out: some percent at 1k. Those
    of 8 bits stand beside the rate of bfloat16, which they may double."""
    return limits.floor_s(shape.layer_bytes(tokens), tokens * shape.token_operations)


def run_s(shape: Shape, rows: int, prompt: int, new: int, limits: Roofline) -> float:
    """`rows` requests at once, `prompt` tokens in and `new` tokens out."""
    mean_context = prompt + new / 2
    steps = new * decode_s(shape, rows, mean_context, limits)
    return rows * prompt_s(shape, prompt, limits) + steps
