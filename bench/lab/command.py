"""Find the fastest instruction set for matrix products, and its share of the floor.

Measures matrix products of quantized and bf16 weights with the kernels of every instruction set
(ISA) that the processor has, in about a minute. For each product it prints the fastest ISA, its
median time in microseconds, the time of the next ISA as a multiple of it, and its share of the
floor. The floor is the larger of the time to read the weights from memory and the time of the
multiply-adds, each measured on this processor with a loop that does nothing else. A last section
lists the ISAs that are slower than the next narrower one. Needs a C++ compiler. Run it on a machine
without other work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from bench.harness.machine_facts import facts
from bench.lab.kernel_table import OPERANDS, Limits, Measured, cliff_lines, cliffs, table
from bench.lab.limits import measure_limits
from bench.lab.products import measure_products
from penstock.kernels.native import Pool
from penstock.kernels.native.isa_trials import candidate_isas

T = TypeVar("T")

SHAPES: Final = ((576, 1536), (1536, 8960), (2560, 9728))
"""The down projections of models with 135M, 1.5B and 4B parameters, N and K."""
ROWS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 512)
SECONDS: Final = 40.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the JSON file."""
    options = _parser().parse_args(arguments)
    began = time.perf_counter()
    limits = measure_limits(options.threads, options.isas)
    _say(_limits_line(limits, options.threads))
    pool = Pool(options.threads)
    measured = []
    for one in measure_products(
        options.weights, options.shapes, options.rows, options.isas, pool, options.seconds
    ):
        measured.append(one)
        if one.product.rows == options.rows[-1]:
            _say(f"{one.product.weights} {one.product.shape}")
    print(table(measured, limits), cliff_lines(measured), sep="\n\n")
    if options.out is not None:
        result = report(limits, measured, options.threads, time.perf_counter() - began)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def report(
    limits: Limits, measured: Sequence[Measured], threads: int, seconds: float
) -> dict[str, Any]:
    """Return the result as JSON values: one entry for each product, and for each cliff."""
    return {
        "machine": facts(),
        "threads": threads,
        "seconds": round(seconds, 1),
        "read_gb_s": round(limits.read_bytes_s / 1e9, 2),
        "multiply_adds_giga_s": {
            isa: {operands: round(rate / 1e9, 1) for operands, rate in rates.items()}
            for isa, rates in limits.multiply_adds_s.items()
        },
        "products": [_entry(one, limits) for one in measured],
        "cliffs": [
            {
                "weights": cliff.product.weights,
                "shape": cliff.product.shape,
                "rows": cliff.product.rows,
                "isa": cliff.isa,
                "below": cliff.below,
                "ratio": round(cliff.ratio, 3),
            }
            for cliff in cliffs(measured)
        ],
    }


def _entry(one: Measured, limits: Limits) -> dict[str, Any]:
    product = one.product
    return {
        "weights": product.weights,
        "shape": product.shape,
        "rows": product.rows,
        "us": {isa: round(1e6 * seconds, 2) for isa, seconds in one.seconds.items()},
        "floor_us": {isa: round(1e6 * limits.floor_s(product, isa), 2) for isa in one.seconds},
        "winner": one.winner,
        "next_ratio": None if one.next_ratio is None else round(one.next_ratio, 3),
        "floor_share": round(one.floor_share(limits), 3),
        "bound": one.bound(limits),
    }


def _limits_line(limits: Limits, threads: int) -> str:
    rates = "; ".join(
        f"{isa} " + ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in of.items())
        for isa, of in limits.multiply_adds_s.items()
    )
    return (
        f"{threads} threads read {limits.read_bytes_s / 1e9:.1f} GB/s; "
        f"giga multiply-adds/s by bits of the weights: {rates}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    isas = candidate_isas()
    parser.add_argument(
        "--weights",
        type=_list_of(_known(OPERANDS)),
        default=list(OPERANDS),
        help=f"comma-separated types of weights (default: {','.join(OPERANDS)})",
    )
    parser.add_argument(
        "--shapes",
        type=_list_of(_shape),
        default=list(SHAPES),
        metavar="NxK,...",
        help="output and input columns "
        f"(default: {','.join(f'{outputs}x{inputs}' for outputs, inputs in SHAPES)})",
    )
    parser.add_argument(
        "--rows",
        type=_list_of(_count),
        default=list(ROWS),
        metavar="M,...",
        help=f"rows of the input (default: {','.join(map(str, ROWS))})",
    )
    parser.add_argument(
        "--isas",
        type=_list_of(_known(isas)),
        default=isas,
        help=f"comma-separated ISAs, the narrowest first (default: {','.join(isas)})",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--threads", type=_count, default=cores, help=f"threads (default: all cores, {cores})"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help=f"time for repetitions; three rounds always run (default: {SECONDS:g})",
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    return parser


def _list_of(parse: Callable[[str], T]) -> Callable[[str], list[T]]:
    return lambda text: [parse(one) for one in text.split(",")]


def _known(names: Any) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _shape(text: str) -> tuple[int, int]:
    outputs, _, inputs = text.partition("x")
    shape = _count(outputs), _count(inputs)
    if shape[1] % 256 != 0:
        raise argparse.ArgumentTypeError(f"{text!r}: K must be a multiple of 256")
    return shape


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
