"""The experts of one layer of Qwen3-30B-A3B by number of tokens, and the routing that chooses
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from bench.device.machine import Bench, measure_roofline
from bench.device.model_shapes import SHAPES, Shape, float8_tiles
from bench.device.ops import Piece
from bench.device.result_log import Record
from penstock.kernels.routing import Routing
from penstock.kernels.weights import Dense, Experts, Float8

TOKENS: tuple[int, ...] = (1, 8, 32, 256, 2048)


def measure(bench: Bench, record: Record) -> None:
    """Run the section `experts`: in bfloat16, and in float8 with one scale per tile."""
    shape, counts = SHAPES["qwen3-30b-a3b"], TOKENS
    if bench.rehearsed:
        shape, counts = shape.small(), (1, 20)
    roofline = measure_roofline(bench)
    for form, item_bytes, matrix in (("bf16", 2, _dense), ("fp8", 1, _float8)):
        packed = bench.ops.pack_experts(_experts(bench, shape, matrix))
        chooses = f"{shape.per_token} of {shape.experts} per token"
        record.title(f"experts of {shape.name} in {form}: {chooses}")
        for tokens in counts:
            for piece in _pieces(bench, shape, packed, item_bytes, tokens):
                taken = bench.seconds(piece.call)
                floor = roofline.floor_s(piece.moved_bytes, piece.operations)
                of_floor = floor / taken
                record.line(piece.name, us=taken * 1e6, floor_us=floor * 1e6, of_floor=of_floor)
        del packed


def _pieces(
    bench: Bench, shape: Shape, packed: object, item_bytes: int, tokens: int
) -> Iterator[Piece]:
    """Yield pieces whose floor counts the bytes of the experts and the bfloat16 operations."""
    ops = bench.ops
    x = torch.randn(tokens, shape.width, dtype=bench.dtype, device=bench.device)
    logits = torch.randn(tokens, shape.experts, device=bench.device)
    routing = Routing(shape.per_token, renormalize=True)
    chosen, shares = ops.route_experts(logits, routing)
    yield Piece(
        f"route {tokens}",
        lambda: ops.route_experts(logits, routing),
        4 * logits.numel() + 8 * chosen.numel(),
    )
    touched = len(torch.unique(chosen))
    rows = 2 * x.numel() * x.element_size()
    yield Piece(
        f"experts {tokens}",
        lambda: ops.experts(x, chosen, shares, packed),
        item_bytes * touched * shape.expert_weights + rows,
        2 * tokens * shape.per_token * shape.expert_weights,
    )


def _experts(
    bench: Bench, shape: Shape, matrix: Callable[[torch.Tensor], Dense | Float8]
) -> Experts:
    def matrices(rows: int, width: int) -> tuple[Dense | Float8, ...]:
        values = torch.randn(shape.experts, rows, width, dtype=torch.bfloat16, device=bench.device)
        return tuple(matrix(one) for one in values / width**0.5)

    inner = (shape.ff, shape.width)
    return Experts(matrices(*inner), matrices(*inner), matrices(shape.width, shape.ff))


def _dense(weight: torch.Tensor) -> Dense:
    return Dense(weight.cpu().view(torch.int16).numpy().view("uint16"), "bf16")


def _float8(weight: torch.Tensor) -> Float8:
    codes, scale = float8_tiles(weight.float())
    return Float8(codes.view(torch.uint8).cpu().numpy(), scale.cpu().numpy(), (128, 128))
