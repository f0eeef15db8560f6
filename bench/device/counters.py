"""The section `counters`: run each piece of `ops` once, so that Nsight Compute can count it.

    ncu --clock-control none --profile-from-start off --set detailed -o FILE \
        python3 -m bench.device counters
"""

from __future__ import annotations

import torch

from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES
from bench.device.ops import pieces
from bench.device.result_log import Record


def measure(bench: Bench, record: Record) -> None:
    """Launch every kernel of a decode step of 32 rows between `cudaProfilerStart` and `...Stop`."""
    shape = SHAPES["qwen3-8b"].small() if bench.rehearsed else SHAPES["qwen3-8b"]
    tokens, context = (3, 40) if bench.rehearsed else (32, 1024)
    found = list(pieces(bench, shape, tokens, context))
    for piece in found:
        piece.call()  # compiled and loaded before the profiler starts
    bench.sync()
    if bench.device != "cpu":
        torch.cuda.cudart().cudaProfilerStart()
    for piece in found:
        piece.call()
    bench.sync()
    if bench.device != "cpu":
        torch.cuda.cudart().cudaProfilerStop()
    record.line("counted", pieces=len(found))
