"""Measures matrix products with the kernels of each instruction set (ISA), as the server runs them:
recorded plans that round the rows and multiply."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.lab.kernel_table import Measured, Product
from penstock.kernels.native.ops import NativeOps
from penstock.kernels.native.plan_inputs import plan_arguments
from penstock.kernels.random_matrix import random_like
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.weights import Affine, Linear, Matrix
from penstock.quant.gguf.ggml_types import TYPES

LEAST_ROUNDS: Final = 3
MOST_ROUNDS: Final = 15
_LEAST_BYTES: Final = 64 << 20  # copies of the weights of a product: more than a cache holds
_MOST_BYTES: Final = 192 << 20
_MOST_COPIES: Final = 512
_MULTIPLY_ADDS: Final = 1 << 31  # of a run: as many copies of the weights as that allows
_INPUT_ROWS: Final = 16  # distinct rows of the input


@dataclass(frozen=True)
class Side:
    """One ISA. `copies`: the packed weights, often enough that they come from memory."""

    isa: str
    ops: NativeOps
    copies: list[Any]


def measure_products(
    weights: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    isas: Sequence[str],
    pool: Any,
    seconds: float,
) -> Iterator[Measured]:
    """Measure each combination at each of `isas` (narrowest first), in about `seconds`."""
    each_s = seconds / (len(weights) * len(shapes) * len(rows))
    for name in weights:
        for shape in shapes:
            sides = [_side(name, shape, isa, pool) for isa in isas]
            x = _input(shape[1])
            plans: dict[int, list[Any]] = {}
            for count in rows:
                product = Product(name, shape, count)
                copies = max(1, min(len(sides[0].copies), _MULTIPLY_ADDS // product.multiply_adds))
                if copies not in plans:
                    plans[copies] = [_plan(side, x, copies, max(rows)) for side in sides]
                medians = _alternated(plans[copies], count, each_s)
                times = {side.isa: s / copies for side, s in zip(sides, medians, strict=True)}
                yield Measured(product, times)


def _side(weights: str, shape: tuple[int, int], isa: str, pool: Any) -> Side:
    ops = NativeOps.eager(pool, isa)
    linear = Linear((random_like(_pattern(weights), *shape),))
    copies = [ops.pack_linear(linear)]
    wanted = min(max(2 * _last_cache_bytes(), _LEAST_BYTES), _MOST_BYTES)
    while len(copies) * copies[0].size_bytes < wanted and len(copies) < _MOST_COPIES:
        copies.append(ops.pack_linear(linear))
    return Side(isa, ops, copies)


def _pattern(weights: str) -> Matrix:
    sample = TYPES[weights].layout_sample()
    if weights == "MXFP4" and isinstance(sample, Affine):  # the scales of published models fit
        return replace(sample, scale=sample.scale.astype(np.float16))
    return sample


def _plan(side: Side, x: Any, copies: int, most_rows: int) -> Any:
    """Return a plan that multiplies rows of `x` by `copies` copies of the weights in turn."""
    recorder = side.ops.recorder(most_rows, most_rows, 1, 1)
    rows = recorder.gather_rows(x, recorder.inputs.tokens)
    out = None
    for packed in side.copies[:copies]:
        out = recorder.linear(rows, packed)
    return recorder.finish(out)


def _alternated(plans: Sequence[Any], rows: int, seconds: float) -> list[float]:
    """Return the median time of each plan for `rows` rows. Rounds run every plan once, alternately
    forwards and backwards; the first, which warms up, does not count."""
    step = plan_arguments(_step(rows))
    taken: list[list[float]] = [[] for _ in plans]
    began = time.perf_counter()
    for number in range(MOST_ROUNDS + 1):
        if number > LEAST_ROUNDS and time.perf_counter() - began > seconds:
            break
        order = range(len(plans)) if number % 2 == 0 else reversed(range(len(plans)))
        for index in order:
            start = time.perf_counter()
            plans[index].run(*step)
            taken[index].append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in taken]


def _input(columns: int) -> Any:
    count = _INPUT_ROWS * columns
    return np.sin(np.arange(count, dtype=np.float32)).reshape(_INPUT_ROWS, columns)


def _step(rows: int) -> StepInputs[Any]:
    """Return the inputs of a step of one token for each of `rows` sequences."""

    def int32(values: Any) -> Any:
        return np.ascontiguousarray(values, np.int32)

    return StepInputs(
        tokens=int32(np.arange(rows) % _INPUT_ROWS),
        positions=int32(np.arange(rows)),
        slots=int32(np.arange(rows)),
        query_starts=int32(np.arange(rows + 1)),
        context_lens=int32(np.full(rows, rows)),
        block_tables=int32(np.zeros((rows, 1))),
        sample_rows=int32(np.empty(0)),
    )


def _last_cache_bytes() -> int:
    """Return the size of the largest cache of the first core; 0 if Linux does not tell."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1:], 0))
    return max(sizes)
