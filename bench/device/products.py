"""Which kernel makes each product fastest, by its number of rows: the table that
`kernels/tuning/linear.json` holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from bench.device.machine import Bench, ceilings
from bench.device.ops import packed_weight
from bench.device.record import Record
from bench.device.shapes import SHAPES, Shape
from penstock.kernels.cuda import Library, find_library
from penstock.kernels.triton import linear

MOST_STREAMED = 64  # of the CUDA library's kernel
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def measure(bench: Bench, record: Record, folder: Path | None) -> None:
    """The section `products`."""
    shapes = list(SHAPES.values())
    counts = TOKENS
    if bench.rehearsed:
        shapes, counts = [shapes[0].small()], (1, 4)
    limits = ceilings(bench)
    table: dict[str, list[tuple[int, str]]] = {}
    for rows, width in sorted({size for shape in shapes for size in _sizes(shape)}):
        packed = packed_weight(bench, rows, width)
        record.title(f"{rows}x{width}")
        best = []
        for tokens in counts:
            x = torch.randn(tokens, width, dtype=bench.dtype, device=bench.device)
            calls = _calls(bench, x, packed)
            times = {name: bench.seconds(call) for name, call in calls.items()}
            floor = limits.floor_s(2 * rows * width, 2 * tokens * rows * width)
            least = min(times.keys() & {"stream", "library"}, key=times.__getitem__)
            best.append((tokens, least))
            us = {f"{name}_us": taken * 1e6 for name, taken in times.items()}
            of_floor = floor / times[least]
            record.line(f"{tokens} tokens", **us, best=least, of_floor=of_floor)
        table[f"{rows}x{width}"] = bounds(best)
    if folder is not None:
        write_table(folder / "linear.json", _capability(bench), table)


def write_table(path: Path, capability: int, table: dict[str, list[tuple[int, str]]]) -> None:
    """Write what was measured as `linear_choice` reads it."""
    path.write_text(json.dumps({str(capability): table}) + "\n")


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


def _sizes(shape: Shape) -> list[tuple[int, int]]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        (q + 2 * kv, shape.width),
        (shape.width, q),
        (2 * shape.ff, shape.width),
        (shape.width, shape.ff),
        (shape.vocab, shape.width),
    ]


def bounds(best: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Pairs of the most tokens and who serves up to there; beyond the last, the library."""
    pairs: list[tuple[int, str]] = []
    for tokens, name in best:
        if pairs and pairs[-1][1] == name:
            pairs.pop()
        pairs.append((tokens, name))
    return pairs[:-1] if pairs[-1][1] == "library" else pairs
