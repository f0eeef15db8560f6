"""Overhead of the thread pool, and its speed while another process occupies a core.

    python bench/lab/thread_pool_bench.py [--threads 2] [--seconds 3]

Replays a plan shaped like one decode step of a small model (30 layers of products that two threads
share) and prints the steps per second: alone, with one thread, and beside a busy process pinned to
one core, with the share kept. `overhead` is a phase of empty tasks: only publish, claim and
barrier.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np

from penstock import _native
from penstock.kernels.native import NativeOps
from penstock.kernels.step_inputs import StepInputs
from penstock.kernels.weights import Affine, Linear

WIDTH, FEED, LAYERS = 576, 1536, 30


def affine(random: np.random.Generator, rows: int, depth: int) -> Affine:
    q = random.integers(0, 256, (rows, depth // 2), dtype=np.uint8)
    return Affine(4, 32, q, np.full((rows, depth // 32), 0.01, np.float16), zero_point=8)


def record(threads: int) -> tuple[Any, Any]:
    """Record the plan of a step of products and norms; return it with its pool."""
    random = np.random.default_rng(0)
    pool = _native.ThreadPool(threads)
    ops = NativeOps.eager(pool)
    weights = [
        [
            ops.pack_linear(Linear((affine(random, rows, depth),)))
            for rows, depth in ((960, WIDTH), (2 * FEED, WIDTH), (WIDTH, FEED))
        ]
        for _ in range(LAYERS)
    ]
    table = ops.pack_embedding(affine(random, 1000, WIDTH))
    norm = np.ones(WIDTH, np.float32)
    recorder = ops.recorder(32, 32, 32, 1)
    x = residual = recorder.embedding(table, recorder.inputs.tokens, 1.0)
    for qkv, gate_up, down in weights:
        x = recorder.rms_norm(residual, norm, 1e-5)
        recorder.linear(x, qkv)
        x, residual = recorder.add_rms_norm(x, residual, norm, 1e-5)
        x = recorder.linear(recorder.silu_mul(recorder.linear(x, gate_up)), down)
    return recorder.finish(x), pool


def step(tokens: int) -> tuple[Any, ...]:
    zeros, ones = np.zeros(tokens, np.int32), np.ones(tokens, np.int32)
    starts = np.arange(tokens + 1, dtype=np.int32)
    inputs = StepInputs(zeros, zeros, zeros, starts, ones, zeros[:, None].copy(), zeros)
    return tuple(getattr(inputs, name) for name in StepInputs.__slots__)


def steps_per_s(plan: Any, tokens: int, seconds: float) -> tuple[float, float]:
    """Return steps per second, and the slowest step in milliseconds."""
    arguments, count, slowest = step(tokens), 0, 0.0
    started = before = time.perf_counter()
    while before - started < seconds:
        plan.run(*arguments)
        after = time.perf_counter()
        count, slowest, before = count + 1, max(slowest, after - before), after
    return count / (before - started), slowest * 1e3


def spin(core: int) -> None:
    os.sched_setaffinity(0, {core})
    while True:
        pass


def overhead_us(threads: int) -> float:
    """Return the median microseconds of a phase of 64 empty tasks."""
    pool = _native.ThreadPool(threads)
    return statistics.median(_native.phase_overhead_s(pool, 64, 2000) for _ in range(15)) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--tokens", type=int, default=1)
    options = parser.parse_args()
    print(f"overhead of a phase, {options.threads} threads: {overhead_us(options.threads):.2f} us")
    plan, pool = record(options.threads)
    single, _ = record(1)
    alone, slowest = steps_per_s(plan, options.tokens, options.seconds)
    print(f"{options.threads} threads alone: {alone:.0f} steps/s, slowest {slowest:.1f} ms")
    one, _ = steps_per_s(single, options.tokens, options.seconds)
    print(f"1 thread: {one:.0f} steps/s, {one / alone:.0%}")
    for core in sorted(os.sched_getaffinity(0))[: options.threads]:
        busy = multiprocessing.get_context("fork").Process(target=spin, args=(core,), daemon=True)
        busy.start()
        before = pool.stalls
        kept, slowest = steps_per_s(plan, options.tokens, options.seconds)
        print(
            f"core {core} busy: {kept:.0f} steps/s, {kept / alone:.0%} kept, "
            f"slowest {slowest:.1f} ms, {pool.stalls - before} stalls"
        )
        busy.kill()
        busy.join()
    again, _ = steps_per_s(plan, options.tokens, options.seconds)
    print(f"alone again: {again:.0f} steps/s, {again / alone:.0%}")


if __name__ == "__main__":
    main()
