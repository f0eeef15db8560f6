"""Which kernel makes each product fastest, by its number of rows: the table that
`kernels/tuning/linear.json` holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.device.machine import Bench, Ceilings, ceilings
from bench.device.ops import layer_sizes, packed_float8, packed_weight
from bench.device.record import Record
from bench.device.shapes import SHAPES, float8_tiles
from penstock.kernels.cuda import Library, find_library
from penstock.kernels.ops.linear import FLOAT8_GROUP
from penstock.kernels.triton import linear, linear_float8
from penstock.kernels.triton.experts_float8 import float8_products
from penstock.kernels.triton.experts_order import order_choices
from penstock.kernels.triton.experts_packed import Float8Stack

MOST_STREAMED = 64  # of the CUDA library's kernel
EXPERTS = 16  # that are multiplied at a time
Table = dict[str, list[tuple[int, str]]]
TOKENS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def measure(bench: Bench, record: Record, folder: Path | None) -> None:
    """The section `products`."""
    shapes, counts = list(SHAPES.values()), TOKENS
    if bench.rehearsed:
        named = {bool(shape.experts): shape.small() for shape in shapes}
        shapes, counts = list(named.values()), (1, 4)
    limits = ceilings(bench)
    plain = [shape for shape in shapes if not shape.experts]
    layers = {size for shape in plain for size in layer_sizes(shape)}
    heads = {(shape.vocab, shape.width) for shape in plain}
    inner = {size for shape in shapes if shape.experts for size in layer_sizes(shape)[2:]}
    either = ("widen", "float8")
    kinds = {
        "": (_Kind(("stream", "library"), 2, packed_weight, _calls), layers | heads),
        "-float8": (_Kind(either, 1, packed_float8, _float8_calls), layers),
        "-float8-experts": (_Kind(either, 1, _packed_stack, _expert_calls, EXPERTS), inner),
    }
    tables: dict[str, Table] = {name: {} for name in kinds}
    for name, (kind, sizes) in kinds.items():
        for rows, width in sorted(sizes):
            found = _measured(bench, record, name, kind, (rows, width), counts, limits)
            tables[name][f"{rows}x{width}"] = found
            if folder is not None:  # each time: what is cut off later keeps what was measured
                write_tables(folder / "linear.json", _capability(bench), tables)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Of weights: the two kernels to choose from, bytes of a weight, what makes weights and calls,
    and how many matrices are multiplied at a time, each with so many rows of its own."""

    kernels: tuple[str, str]
    item_bytes: int
    pack: Callable[[Bench, int, int], Any]
    calls: Callable[[Bench, torch.Tensor, Any], dict[str, Any]]
    matrices: int = 1


def _measured(
    bench: Bench,
    record: Record,
    name: str,
    kind: _Kind,
    size: tuple[int, int],
    counts: tuple[int, ...],
    limits: Ceilings,
) -> list[tuple[int, str]]:
    """The bounds of the kernels that are fastest."""
    rows, width = size
    packed = kind.pack(bench, rows, width)
    record.title(f"{rows}x{width}{name}")
    best = []
    for tokens in counts:
        x = torch.randn(tokens, width, dtype=bench.dtype, device=bench.device)
        calls = kind.calls(bench, x, packed)
        times = {kernel: bench.seconds(call) for kernel, call in calls.items()}
        weights = kind.matrices * rows * width
        floor = limits.floor_s(kind.item_bytes * weights, 2 * tokens * weights)
        least = min(times.keys() & set(kind.kernels), key=times.__getitem__)
        best.append((tokens, least))
        us = {f"{kernel}_us": taken * 1e6 for kernel, taken in times.items()}
        record.line(f"{tokens} tokens", **us, best=least, of_floor=floor / times[least])
    return bounds(best, kind.kernels[1])


def write_tables(path: Path, capability: int, tables: dict[str, Table]) -> None:
    """Write what was measured, of dense weights ("") and of the other kinds by their names, as
    `linear_choice` reads it."""
    path.write_text(json.dumps({f"{capability}{name}": table for name, table in tables.items()}))


def _capability(bench: Bench) -> int:
    """Of the GPU; 0 in a rehearsal, which no GPU has."""
    if bench.device == "cpu":
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _calls(bench: Bench, x: torch.Tensor, packed: Any) -> dict[str, Any]:
    """By whom a product may be made: "stream" is the kernel that would stream it."""
    if bench.device == "cpu":
        return {"library": lambda: bench.ops.linear(x, packed)}
    data, (tokens, width) = packed.parts[0].data, x.shape
    own = find_library(torch.version.cuda)

    def triton() -> None:
        linear._dense(x.new_empty(tokens, len(data)), x, packed.parts[0], None, 0)

    def ours() -> None:
        out = x.new_empty(tokens, len(data))
        own.call("linear", out, x, data, None, tokens, len(data), width, 0)

    calls = {"stream": triton, "library": lambda: torch.mm(x, data.t())}
    if isinstance(own, Library) and tokens <= MOST_STREAMED:
        calls |= {"stream": ours, "triton": triton}
    return calls


def _float8_calls(bench: Bench, x: torch.Tensor, packed: Any) -> dict[str, Any]:
    """Both ways with weights of 8 bits."""
    if bench.device == "cpu":
        return {"float8": lambda: bench.ops.linear(x, packed)}
    part = packed.parts[0]

    def made(kind: linear_float8.Float8Choice) -> Callable[[], None]:
        out = x.new_empty(len(x), part.shape[0])
        return lambda: linear_float8.multiply(kind, out, x, part, None, 0)

    return {"widen": made("widen"), "float8": made("float8")}


def _packed_stack(bench: Bench, rows: int, width: int) -> Float8Stack:
    """Random experts in 8 bits, with a scale for each tile of 128 x 128."""
    drawn = torch.randn(EXPERTS, rows, width, device=bench.device) / width**0.5
    codes, scale = zip(*(float8_tiles(one) for one in drawn), strict=True)
    stacked = torch.stack([one.t().contiguous() for one in scale])
    return Float8Stack(torch.stack(codes).view(torch.uint8), stacked, FLOAT8_GROUP, True)


def _expert_calls(bench: Bench, x: torch.Tensor, stack: Float8Stack) -> dict[str, Any]:
    """Both ways with experts of 8 bits, of which each has as many rows as x."""
    rows, each = x.repeat(EXPERTS, 1), len(x)
    if bench.device == "cpu":
        wide = stack.codes.view(torch.float8_e4m3fn).to(x.dtype)
        return {"float8": lambda: torch.bmm(rows.unflatten(0, (EXPERTS, each)), wide.mT)}
    chosen = torch.arange(EXPERTS, device=x.device, dtype=torch.int32).repeat_interleave(each)

    def made(kind: linear_float8.Float8Choice, tile: int) -> Callable[[], None]:
        order = order_choices(chosen[:, None], EXPERTS, tile)
        out = x.new_empty(len(rows), stack.shape[1])
        extents = (len(rows), 0, out.shape[1], 1)
        lists = (order.order, order.tile_expert, order.tiles, *extents)
        return lambda: float8_products(kind, out, rows, stack, order, lists)

    return {"widen": made("widen", 64 if each >= 32 else 16), "float8": made("float8", 64)}


def bounds(best: list[tuple[int, str]], last: str = "library") -> list[tuple[int, str]]:
    """Pairs of the most tokens and who serves up to there; beyond the last of them, `last`."""
    pairs: list[tuple[int, str]] = []
    for tokens, name in best:
        if pairs and pairs[-1][1] == name:
            pairs.pop()
        pairs.append((tokens, name))
    return pairs[:-1] if pairs[-1][1] == last else pairs
