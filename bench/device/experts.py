"""The experts of one layer of Qwen3-30B-A3B by the number of tokens, and what chooses them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from bench.device.machine import Bench, ceilings
from bench.device.ops import Piece
from bench.device.record import Record
from bench.device.shapes import SHAPES, Shape
from penstock.kernels.weights import Dense, Experts

TOKENS = (1, 8, 32, 256, 2048)


def measure(bench: Bench, record: Record) -> None:
    """The section `experts`."""
    shape, counts = SHAPES["qwen3-30b-a3b"], TOKENS
    if bench.rehearsed:
        shape, counts = shape.small(), (1, 20)
    limits = ceilings(bench)
    weights = _experts(bench, shape)
    packed = bench.ops.pack_experts(weights)
    del weights
    record.title(f"experts of {shape.name}: {shape.per_token} of {shape.experts} a token")
    for tokens in counts:
        for piece in _pieces(bench, shape, packed, tokens):
            taken = bench.seconds(piece.call)
            floor = limits.floor_s(piece.moved_bytes, piece.operations)
            record.line(piece.name, us=taken * 1e6, floor_us=floor * 1e6, of_floor=floor / taken)


def _pieces(bench: Bench, shape: Shape, packed: object, tokens: int) -> Iterator[Piece]:
    ops = bench.ops
    x = torch.randn(tokens, shape.width, dtype=bench.dtype, device=bench.device)
    logits = torch.randn(tokens, shape.experts, device=bench.device)
    chosen, shares = ops.route_experts(logits, shape.per_token, True)
    yield Piece(
        f"route {tokens}",
        lambda: ops.route_experts(logits, shape.per_token, True),
        4 * logits.numel() + 8 * chosen.numel(),
    )
    touched = len(torch.unique(chosen))
    rows = 2 * x.numel() * x.element_size()
    yield Piece(
        f"experts {tokens}",
        lambda: ops.experts(x, chosen, shares, packed),
        2 * touched * shape.expert_weights + rows,
        2 * tokens * shape.per_token * shape.expert_weights,
    )


def _experts(bench: Bench, shape: Shape) -> Experts:
    def matrices(rows: int, width: int) -> tuple[Dense, ...]:
        drawn = torch.randn(shape.experts, rows, width, dtype=torch.bfloat16, device=bench.device)
        bits = (drawn / width**0.5).cpu().view(torch.int16).numpy().view("uint16")
        return tuple(Dense(one, "bf16") for one in bits)

    inner = (shape.ff, shape.width)
    return Experts(matrices(*inner), matrices(*inner), matrices(shape.width, shape.ff))
