"""The section `variants`: every form of the CUDA kernels, in a captured decode step; writes
`cuda.json`.

A step is a CUDA graph of several copies of one layer of Qwen3-8B, whose weights exceed the L2
cache, so that a figure holds the gaps between kernels too. A form may only win if its results are
those of the default form. The form with the least geometric mean over all widths wins.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.device.check import WHOLE, WORST, errors
from bench.device.machine import Bench
from bench.device.ops import BLOCK, drawn_weight, layer_sizes, pack_dense, step_of
from bench.device.record import Record
from bench.device.shapes import SHAPES, Shape
from penstock.kernels.cuda.tuning import DEFAULTS, VALUES
from penstock.kernels.table import HeadNorm

LAYERS, REPLAYS = 6, 8
WIDTHS = ((1, 1024), (32, 1024), (256, 1024), (8, 16384))
"""Rows and the tokens of context of each."""

CHUNKS = (64, 128, 256)
"""Keys of the smallest chunk of decode attention."""

Form = tuple[tuple[str, int], ...]
"""Pairs of a setting and its value."""


@dataclass(frozen=True, slots=True)
class Step:
    """The layers of a decode step of `tokens` rows; `run` gives the residual [T, W] at its end."""

    tokens: int
    context: int
    run: Callable[[], torch.Tensor]


def measure(bench: Bench, record: Record, folder: Path | None) -> None:
    """Time every form and name the best one. Does nothing without the CUDA library."""
    shape = SHAPES["qwen3-8b"].small() if bench.rehearsed else SHAPES["qwen3-8b"]
    widths = ((3, 40),) if bench.rehearsed else WIDTHS
    record.title(f"forms of the CUDA kernels in {LAYERS} captured layers of {shape.name}")
    times: dict[Form, dict[str, float]] = {}
    for tokens, context in widths:
        layer = _Layer(bench, shape, tokens, context)
        default = layer.step(CHUNKS[-1]).run()
        for form in forms(bench):
            name = f"{tokens} x {context}"
            us = _time(bench, record, layer, form, default)
            times.setdefault(form, {})[name] = us
    if not times:
        return
    means = {form: math.prod(row.values()) ** (1 / len(row)) for form, row in times.items()}
    ordered = sorted(means, key=means.__getitem__)
    for form in [*ordered[:6], ordered[-1]]:
        shown = " ".join(f"{name}={value}" for name, value in form)
        record.line(shown, mean_us=means[form], **times[form])
    if folder is not None and math.isfinite(means[ordered[0]]):
        write_table(folder / "cuda.json", bench, ordered[0])


def forms(bench: Bench) -> Iterator[Form]:
    """Every combination of settings that this device has."""
    library = getattr(bench.ops, "library", None)
    if bench.rehearsed or library is None or not hasattr(library, "tune"):
        yield (*DEFAULTS.items(), ("chunk", CHUNKS[-1]))
        return
    for values in itertools.product(*VALUES.values(), CHUNKS):
        yield tuple(zip([*VALUES, "chunk"], values, strict=True))


def _time(bench: Bench, record: Record, layer: _Layer, form: Form, default: torch.Tensor) -> float:
    """Microseconds of a layer in this form; infinite if it fails or is wrong."""
    settings = dict(form)
    step = layer.step(settings.pop("chunk"))
    if bench.rehearsed:
        return 1e6 * bench.seconds(step.run) / LAYERS
    try:
        with bench.ops.library.tuned(**settings):
            whole, worst = errors(step.run(), default)
            assert whole <= WHOLE and worst <= WORST, f"wrong: {whole:.3g}, worst {worst:.3g}"
            return 1e6 * _graph_s(bench, step) / LAYERS
    except (RuntimeError, AssertionError, ValueError) as error:
        record.line(f"{layer.tokens} rows {dict(form)}", failed=str(error)[:200])
        bench.sync()
        return math.inf


def _graph_s(bench: Bench, step: Step) -> float:
    """Seconds of one replay of a captured step."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step.run()
        return min(bench.in_a_row_s(graph.replay, REPLAYS) for _ in range(3))


class _Layer:
    """One layer's weights and the inputs of a decode step of it."""

    def __init__(self, bench: Bench, shape: Shape, tokens: int, context: int) -> None:
        self.tokens = tokens
        self._bench, self._shape, self._context = bench, shape, context
        self._weights = [
            pack_dense(bench, drawn_weight(bench, rows, width))
            for rows, width in layer_sizes(shape)
        ]
        self._inputs, self._cache = step_of(bench, shape, [(context - 1, 1)] * tokens)
        device = bench.device
        self._x = torch.randn(tokens, shape.width, dtype=bench.dtype, device=device)
        self._norm = torch.ones(shape.width, device=device)
        self._rope = torch.rand(context, shape.head_dim, device=device)
        ones = [torch.ones(shape.head_dim, device=device) for _ in range(2)]
        self._head_norm = HeadNorm(ones[0], ones[1], 1e-6)

    def step(self, chunk: int) -> Step:
        """The layers, with attention planned for that smallest chunk."""
        inputs = self._planned(chunk)
        return Step(self.tokens, self._context, lambda: self._layers(inputs))

    def _planned(self, chunk: int) -> Any:
        if self._bench.device == "cpu":
            return self._inputs
        from penstock.kernels.triton.attention_work import AttentionWork, most_units

        shape = self._shape
        heads = (shape.heads, shape.kv_heads, shape.head_dim)
        rows, width = self._inputs.block_tables.shape
        units = most_units(rows, width * BLOCK, chunk)
        work = AttentionWork.allocate(rows, units, heads, 0, self._bench.device, chunk=chunk)
        work.plan(self._inputs)
        return replace(self._inputs, work={0: work})

    def _layers(self, inputs: Any) -> torch.Tensor:
        ops, shape = self._bench.ops, self._shape
        heads, scale = (shape.heads, shape.kv_heads, shape.head_dim), shape.head_dim**-0.5
        qkv, output, gate_up, down = self._weights
        x = residual = self._x
        for _ in range(LAYERS):
            normed, residual = ops.add_rms_norm(x, residual, self._norm, 1e-6)
            q = ops.rope_cache(
                ops.linear(normed, qkv), self._rope, inputs, self._cache, heads, self._head_norm
            )
            attended = ops.attention(q, inputs, self._cache, heads, scale, 0, None)
            x = ops.linear(attended, output)
            normed, residual = ops.add_rms_norm(x, residual, self._norm, 1e-6)
            x = ops.linear(ops.silu_mul(ops.linear(normed, gate_up)), down)
        return x + residual


def write_table(path: Path, bench: Bench, form: Form) -> None:
    """The table that `kernels/cuda/tuning.py` reads, for the capability of this GPU."""
    key = "0"
    if bench.device != "cpu":
        major, minor = torch.cuda.get_device_capability()
        key = str(10 * major + minor)
    path.write_text(json.dumps({key: dict(form)}) + "\n")
