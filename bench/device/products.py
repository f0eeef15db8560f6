"""The section `products`: find the fastest kernel of each product by number of rows, for
`kernels/tuning/linear.json`.

Calls are replayed from CUDA graphs, as in decode steps. A kernel whose result is wrong, or that
failed the trial, cannot win.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.device.check import (
    FLOAT8_WHOLE,
    FLOAT8_WORST,
    WHOLE,
    WORST,
    errors,
    poison,
)
from bench.device.linear_kernels import Calls, float8_product, own_calls, product
from bench.device.machine import Bench, Roofline, measure_roofline
from bench.device.model_shapes import SHAPES, float8_tiles
from bench.device.ops import layer_sizes, packed_float8, packed_weight
from bench.device.result_log import Record
from penstock.kernels.ops.linear import FLOAT8_GROUP, ReferenceLinear
from penstock.kernels.ops.linear import linear as reference_linear
from penstock.kernels.triton.linear_choice import TABLE, Float8Choice, float8_capability
from penstock.kernels.triton.matmul import library_float8, linear, linear_float8
from penstock.kernels.triton.matmul.packed_weights import PackedFloat8
from penstock.kernels.triton.moe.expert_order import order_choices
from penstock.kernels.triton.moe.experts_float8 import float8_products
from penstock.kernels.triton.moe.packed_experts import Float8Stack

EXPERTS = 16  # experts multiplied in one call
BOUNDS, FLOAT8_BOUNDS = (WHOLE, WORST), (FLOAT8_WHOLE, FLOAT8_WORST)
Table = dict[str, list[tuple[int, str]]]
TOKENS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def measure(bench: Bench, record: Record, folder: Path | None, only: str | None = None) -> None:
    """Run the section `products`. `only`: measure one kind of weights ("" for dense ones) and keep
    the table of the others."""
    shapes, counts = list(SHAPES.values()), TOKENS
    if bench.rehearsed:
        named = {bool(shape.experts): shape.small() for shape in shapes}
        shapes, counts = list(named.values()), (1, 4)
    roofline = measure_roofline(bench)
    plain = [shape for shape in shapes if not shape.experts]
    layers = {size for shape in plain for size in layer_sizes(shape)}
    heads = {(shape.vocab, shape.width) for shape in plain}
    inner = {size for shape in shapes if shape.experts for size in layer_sizes(shape)[2:]}
    dense = _Kind(("stream", "staged", "library"), 2, packed_weight, _calls, _dense_truth)
    float8 = _Kind(
        ("widen", "staged", "float8", "library"), 1, packed_float8, _float8_calls, _float8_truth
    )
    experts = _Kind(("widen", "float8"), 1, _packed_stack, _expert_calls, _expert_truth, EXPERTS)
    kinds = {
        "": (dense, layers | heads),
        "-float8": (float8, layers),
        "-float8-experts": (experts, inner),
    }
    if only is not None:
        kinds = {only: kinds[only]}
    tables: dict[str, Table] = {name: {} for name in kinds}
    for name, (kind, sizes) in kinds.items():
        for rows, width in sorted(sizes):
            found = _measured(bench, record, name, kind, (rows, width), counts, roofline)
            tables[name][f"{rows}x{width}"] = found
            if folder is not None:  # after each size: a run that is cut off keeps its results
                write_tables(folder / "linear.json", _capability(bench), tables)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of weights.

    `kernels`: their names; the last one serves beyond the table. `item_bytes`: bytes of a weight.
    `pack`, `calls`, `truth`: make the weights, the calls and the float32 results. The last field is
    the number of matrices multiplied in one call, each with its own rows.
    """

    kernels: tuple[str, ...]
    item_bytes: int
    pack: Callable[[Bench, int, int], Any]
    calls: Callable[[Bench, torch.Tensor, Any], Calls]
    truth: Callable[[torch.Tensor, Any], torch.Tensor]
    matrices: int = 1


def _measured(
    bench: Bench,
    record: Record,
    name: str,
    kind: _Kind,
    size: tuple[int, int],
    counts: tuple[int, ...],
    roofline: Roofline,
) -> list[tuple[int, str]]:
    """Return the bounds of the fastest kernels."""
    rows, width = size
    packed = kind.pack(bench, rows, width)
    record.title(f"{rows}x{width}{name}")
    best = []
    for tokens in counts:
        x = torch.randn(tokens, width, dtype=bench.dtype, device=bench.device)
        calls = kind.calls(bench, x, packed)
        wrong = _wrong(bench, calls, kind.truth(x, packed))
        times = {
            kernel: bench.replay_seconds(call)
            for kernel, call in calls.items()
            if kernel not in wrong
        }
        weights = kind.matrices * rows * width
        floor = roofline.floor_s(kind.item_bytes * weights, 2 * tokens * weights)
        least = min(times.keys() & set(kind.kernels), key=times.__getitem__)
        best.append((tokens, least))
        shown: dict[str, Any] = {f"{kernel}_us": 1e6 * taken for kernel, taken in times.items()}
        shown |= {f"{kernel}_wrong": reason for kernel, reason in wrong.items()}
        record.line(f"{tokens} tokens", **shown, best=least, of_floor=floor / times[least])
    return bounds(best, kind.kernels[-1])


def _wrong(bench: Bench, calls: Calls, truth: torch.Tensor) -> dict[str, str]:
    """Return the names of the kernels whose results are wrong or missing, with the reason."""
    found = {}
    for kernel, call in calls.items():
        try:
            poison(bench)
            whole, worst = errors(call(), truth)
            bench.sync()
        except Exception as error:  # a broken kernel must not hide the other results
            found[kernel] = f"{type(error).__name__}: {str(error)[:200]}"
            bench.sync()  # raises if the device is lost, and with it all that would follow
            continue
        rounded = kernel == "float8" or (kernel == "library" and "float8" in calls)
        bound = FLOAT8_BOUNDS if rounded else BOUNDS
        if not (whole <= bound[0] and worst <= bound[1]):  # also if NaN
            found[kernel] = f"off by {whole:.2g}, a row by {worst:.2g}"
    return found


def write_tables(path: Path, capability: int, tables: dict[str, Table]) -> None:
    """Write the measured tables in the format of `linear_choice`: dense weights under "", other
    kinds under their names. Sizes that were not measured keep their kernels."""
    known = json.loads((path if path.exists() else TABLE).read_text())
    for name, table in tables.items():
        known[f"{capability}{name}"] = known.get(f"{capability}{name}", {}) | table
    path.write_text(json.dumps(known))


def _capability(bench: Bench) -> int:
    """Return the compute capability of the GPU; 0 in a rehearsal, which no GPU has."""
    if bench.device == "cpu":
        return 0
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _calls(bench: Bench, x: torch.Tensor, packed: Any) -> Calls:
    """Return the calls of a product by kernel name; "stream" is the CUDA library's streaming
    kernel."""
    if bench.device == "cpu":
        return {"library": lambda: bench.ops.linear(x, packed)}
    part = packed.parts[0]

    def triton() -> torch.Tensor:
        out = x.new_empty(len(x), part.shape[0])
        linear._dense(out, x, part, None, 0)
        return out

    calls: Calls = {"stream": triton, "library": lambda: torch.mm(x, part.data.t())}
    own = own_calls(bench, x, packed)
    if "linear" in own:
        calls |= {"stream": own["linear"], "triton": triton}
    if "staged_linear" in own:
        calls["staged"] = own["staged_linear"]
    return calls


def _float8_calls(bench: Bench, x: torch.Tensor, packed: Any) -> Calls:
    """Return the calls with float8 weights; "widen" is the kernel that widens them."""
    if bench.device == "cpu":
        return {"float8": lambda: bench.ops.linear(x, packed)}
    part = packed.parts[0]

    def made(kind: Float8Choice) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            out = x.new_empty(len(x), part.shape[0])
            linear_float8.multiply(kind, out, x, part, None, 0)
            return out

        return call

    calls: Calls = {"widen": made("widen"), "float8": made("float8")}
    if library_float8.serves(part, x.dtype, float8_capability(x.device)):
        calls["library"] = lambda: library_float8.library_product(x, part, None)
    own = own_calls(bench, x, packed)
    if "linear_float8" in own:
        calls |= {"widen": own["linear_float8"], "triton": calls["widen"]}
    if "staged_linear" in own:
        calls["staged"] = own["staged_linear"]
    return calls


def _dense_truth(x: torch.Tensor, packed: Any) -> torch.Tensor:
    if isinstance(packed, ReferenceLinear):
        return reference_linear(x, packed)
    return product(x, packed.parts[0].data)


def _float8_truth(x: torch.Tensor, packed: Any) -> torch.Tensor:
    if isinstance(packed, ReferenceLinear):
        return reference_linear(x, packed)
    return float8_product(x, packed.parts[0])


def _expert_truth(x: torch.Tensor, stack: Float8Stack) -> torch.Tensor:
    """Compute [EXPERTS * T, N]: the products of the experts, one after the other."""
    parts = [
        PackedFloat8(codes, scale, stack.scale_rows, stack.grouped)
        for codes, scale in zip(stack.codes, stack.scale, strict=True)
    ]
    return torch.cat([float8_product(x, part) for part in parts])


def _packed_stack(bench: Bench, rows: int, width: int) -> Float8Stack:
    """Make random float8 experts, with one scale per tile of 128 x 128."""
    values = torch.randn(EXPERTS, rows, width, device=bench.device) / width**0.5
    codes, scale = zip(*(float8_tiles(one) for one in values), strict=True)
    stacked = torch.stack([one.t().contiguous() for one in scale])
    return Float8Stack(torch.stack(codes).view(torch.uint8), stacked, FLOAT8_GROUP, True)


def _expert_calls(bench: Bench, x: torch.Tensor, stack: Float8Stack) -> Calls:
    """Return both calls for float8 experts; each expert has as many rows as x."""
    rows, each = x.repeat(EXPERTS, 1), len(x)
    if bench.device == "cpu":
        return {"float8": lambda: _expert_truth(x, stack)}
    chosen = torch.arange(EXPERTS, device=x.device, dtype=torch.int32).repeat_interleave(each)

    def made(kind: Float8Choice, tile: int) -> Callable[[], torch.Tensor]:
        order = order_choices(chosen[:, None], EXPERTS, tile)
        out = x.new_empty(len(rows), stack.shape[1])
        extents = (len(rows), 0, out.shape[1], 1)
        lists = (order.order, order.tile_expert, order.tiles, *extents)

        def call() -> torch.Tensor:
            float8_products(kind, out, rows, stack, order, lists)
            return out

        return call

    return {"widen": made("widen", 64 if each >= 32 else 16), "float8": made("float8", 64)}


def bounds(best: list[tuple[int, str]], last: str = "library") -> list[tuple[int, str]]:
    """Return pairs of the largest number of tokens and the kernel that serves up to it; `last`
    serves beyond."""
    pairs: list[tuple[int, str]] = []
    for tokens, name in best:
        if pairs and pairs[-1][1] == name:
            pairs.pop()
        pairs.append((tokens, name))
    return pairs[:-1] if pairs[-1][1] == last else pairs
