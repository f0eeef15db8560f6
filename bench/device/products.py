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
from bench.device.shapes import SHAPES, Shape
from penstock.kernels.cuda import Library, find_library
from penstock.kernels.triton import linear, linear_float8

MOST_STREAMED = 64  # of the CUDA library's kernel
Table = dict[str, list[tuple[int, str]]]
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def measure(bench: Bench, record: Record, folder: Path | None) -> None:
    """The section `products`."""
    shapes = [shape for shape in SHAPES.values() if not shape.experts]
    counts = TOKENS
    if bench.rehearsed:
        shapes, counts = [shapes[0].small()], (1, 4)
    limits = ceilings(bench)
    dense = _Kind("", ("stream", "library"), 2, packed_weight, _calls)
    eight_bits = _Kind("-float8", ("widen", "float8"), 1, packed_float8, _float8_calls)
    sizes = {size for shape in shapes for size in (*layer_sizes(shape), _head(shape))}
    layers = {size for shape in shapes for size in layer_sizes(shape)}
    table = _measured(bench, record, dense, sorted(sizes), counts, limits)
    float8_table = _measured(bench, record, eight_bits, sorted(layers), counts, limits)
    if folder is not None:
        write_table(folder / "linear.json", _capability(bench), table, float8_table)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Of weights: `name` in the table, the two kernels to choose from, bytes of a weight, and what
    makes weights and calls."""

    name: str
    kernels: tuple[str, str]
    item_bytes: int
    pack: Callable[[Bench, int, int], Any]
    calls: Callable[[Bench, torch.Tensor, Any], dict[str, Any]]


def _measured(
    bench: Bench,
    record: Record,
    kind: _Kind,
    sizes: list[tuple[int, int]],
    counts: tuple[int, ...],
    limits: Ceilings,
) -> Table:
    """For each size the bounds of the kernels that are fastest."""
    table: Table = {}
    for rows, width in sizes:
        packed = kind.pack(bench, rows, width)
        record.title(f"{rows}x{width}{kind.name}")
        best = []
        for tokens in counts:
            x = torch.randn(tokens, width, dtype=bench.dtype, device=bench.device)
            calls = kind.calls(bench, x, packed)
            times = {name: bench.seconds(call) for name, call in calls.items()}
            floor = limits.floor_s(kind.item_bytes * rows * width, 2 * tokens * rows * width)
            least = min(times.keys() & set(kind.kernels), key=times.__getitem__)
            best.append((tokens, least))
            us = {f"{name}_us": taken * 1e6 for name, taken in times.items()}
            of_floor = floor / times[least]
            record.line(f"{tokens} tokens", **us, best=least, of_floor=of_floor)
        table[f"{rows}x{width}"] = bounds(best, kind.kernels[1])
    return table


def write_table(
    path: Path, capability: int, table: Table, float8_table: Table | None = None
) -> None:
    """Write what was measured, of dense weights and of 8-bit floats, as `linear_choice` reads
    it."""
    tables = {str(capability): table}
    if float8_table is not None:
        tables[f"{capability}-float8"] = float8_table
    path.write_text(json.dumps(tables) + "\n")


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


def _head(shape: Shape) -> tuple[int, int]:
    return shape.vocab, shape.width


def bounds(best: list[tuple[int, str]], last: str = "library") -> list[tuple[int, str]]:
    """Pairs of the most tokens and who serves up to there; beyond the last of them, `last`."""
    pairs: list[tuple[int, str]] = []
    for tokens, name in best:
        if pairs and pairs[-1][1] == name:
            pairs.pop()
        pairs.append((tokens, name))
    return pairs[:-1] if pairs[-1][1] == last else pairs
