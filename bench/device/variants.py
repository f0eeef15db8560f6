"""The section `variants`: time every variant of the CUDA kernels in a captured decode step; write
`cuda.json` and `chunks.json`.

A step is a CUDA graph of several copies of one layer of Qwen3-8B, whose weights exceed the L2
cache, so that the times include the gaps between kernels. A variant may win only if its results
equal those of the default. The variant with the lowest geometric mean over all widths wins; groups
of settings are searched one after another.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.device.check import WHOLE, WORST, errors
from bench.device.machine import Bench
from bench.device.model_shapes import SHAPES, Shape
from bench.device.ops import BLOCK, layer_sizes, pack_dense, random_weight, step_of
from bench.device.result_log import Record
from penstock.kernels.cuda import Library
from penstock.kernels.cuda.tuning import DEFAULTS, VALUES
from penstock.kernels.kv_splits import SIZES
from penstock.kernels.step_inputs import HeadNorm

LAYERS, REPLAYS = 6, 8
WIDTHS = ((1, 1024), (32, 1024), (256, 1024), (8, 16384))
"""Rows, and tokens of context of each."""

GROUPS = (
    ("decode_programs", "chunk"),
    ("overlap", "linear_loads"),
    ("decode_programs", "chunk"),
)
"""Settings that are varied together, with the others at the best values so far. `chunk`: keys in
the smallest chunk of decode attention (kernels/kv_splits.py)."""

Variant = tuple[tuple[str, int], ...]
"""Pairs of a setting and its value."""


@dataclass(frozen=True, slots=True)
class Step:
    """The layers of a decode step of `tokens` rows; `run` returns the residual [T, W] after
    them."""

    tokens: int
    context: int
    run: Callable[[], torch.Tensor]


def measure(bench: Bench, record: Record, folder: Path | None) -> None:
    """Time every variant and write the best one. Does nothing without the CUDA library."""
    shape = SHAPES["qwen3-8b"].small() if bench.rehearsed else SHAPES["qwen3-8b"]
    widths = ((3, 40),) if bench.rehearsed else WIDTHS
    record.title(f"variants of the CUDA kernels in {LAYERS} captured layers of {shape.name}")
    layers = {f"{tokens} x {at}": _Layer(bench, shape, tokens, at) for tokens, at in widths}
    defaults = {name: layer.step(SIZES[-1]).run() for name, layer in layers.items()}
    best: dict[str, int] = {**DEFAULTS, "chunk": SIZES[-1]}
    for group in GROUPS if _has_variants(bench) else ((),):
        means: dict[Variant, float] = {}
        for values in itertools.product(*(_values(setting) for setting in group)):
            form = {**best, **dict(zip(group, values, strict=True))}
            us = {
                name: _time(bench, record, layer, form, defaults[name])
                for name, layer in layers.items()
            }
            mean_us = math.prod(us.values()) ** (1 / len(us))
            means[tuple(form.items())] = mean_us
            shown = " ".join(f"{setting}={form[setting]}" for setting in group) or "default"
            record.line(shown, mean_us=mean_us, **us)
        best = dict(min(means.items(), key=lambda timed: timed[1])[0])
    record.line("best", **best)
    if folder is not None:
        write_tables(folder, bench, best)


def _has_variants(bench: Bench) -> bool:
    return not bench.rehearsed and isinstance(getattr(bench.ops, "library", None), Library)


def _values(setting: str) -> tuple[int, ...]:
    return SIZES if setting == "chunk" else VALUES[setting]


def _time(
    bench: Bench,
    record: Record,
    layer: _Layer,
    form: Mapping[str, int],
    default: torch.Tensor,
) -> float:
    """Return the microseconds of a layer in this variant; infinity if it fails or is wrong."""
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
    """Return the seconds of one replay of a captured step."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step.run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step.run()
        return min(bench.in_a_row_s(graph.replay, REPLAYS) for _ in range(3))


class _Layer:
    """One layer's weights and the inputs of a decode step."""

    def __init__(self, bench: Bench, shape: Shape, tokens: int, context: int) -> None:
        self.tokens = tokens
        self._bench, self._shape, self._context = bench, shape, context
        self._weights = [
            pack_dense(bench, random_weight(bench, rows, width))
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
        """Return the layers, with attention planned for that smallest chunk."""
        inputs = self._planned(chunk)
        return Step(self.tokens, self._context, lambda: self._layers(inputs))

    def _planned(self, chunk: int) -> Any:
        if self._bench.device == "cpu":
            return self._inputs
        from penstock.kernels.triton.paged_attention.decode_work import AttentionWork, most_units

        shape = self._shape
        heads = (shape.heads, shape.kv_heads, shape.head_dim)
        rows, width = self._inputs.block_tables.shape
        units = most_units(rows, width * BLOCK, chunk)
        work = AttentionWork.allocate(rows, units, heads, 0, self._bench.device, split=chunk)
        work.plan(self._inputs)
        return replace(self._inputs, work={(heads, 0): work})

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


def write_tables(folder: Path, bench: Bench, form: Mapping[str, int]) -> None:
    """Write the tables that `kernels/cuda/tuning.py` and `kernels/kv_splits.py` read, for this
    GPU."""
    key = "0"
    if bench.device != "cpu":
        major, minor = torch.cuda.get_device_capability()
        key = str(10 * major + minor)
    settings = {name: value for name, value in form.items() if name != "chunk"}
    (folder / "cuda.json").write_text(json.dumps({key: settings}) + "\n")
    (folder / "chunks.json").write_text(json.dumps({"smallest": form["chunk"]}) + "\n")
