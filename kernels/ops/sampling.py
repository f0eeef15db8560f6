"""Choosing tokens from logits, as `kernels/sampler_inputs.py` states it; and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.sampling_cases import draw_barren, draw_logits, draw_unusable
from penstock.kernels.ops.sampling_reference import sample, top_logprobs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    return {"logits": inputs["logits"][index : index + 1], "rows": inputs["rows"].row(index)}


def _draw_rows(
    vocabulary: int, asked: Sequence[int], count: int, levels: int = 0
) -> Callable[[int], dict[str, Any]]:
    """Of as many rows as the highest of `asked` needs, those asked; a fifth of the logits -inf."""

    def draw(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(max(asked) + 1, vocabulary) * 3
        if levels:
            logits = (logits * levels / 12).round() * 12 / levels
        logits[:, 1::5] = float("-inf")
        return {
            "logits": logits,
            "rows": torch.tensor(asked, dtype=torch.int32),
            "tokens": source.integers(0, vocabulary, len(asked)),
            "count": count,
        }

    return draw


def _draw_broken(seed: int) -> dict[str, Any]:
    inputs = _draw_rows(50, (0, 1, 2, 3), 4)(seed)
    logits = inputs["logits"]
    logits[0, 7], logits[1, 49], logits[2] = float("nan"), float("inf"), float("-inf")
    return inputs


def _alone_row(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    return {**inputs, "rows": inputs["rows"][one], "tokens": inputs["tokens"][one]}


def _invoke_top(ops: Any, inputs: Inputs) -> tuple[Any, ...]:
    names = ("logits", "rows", "tokens", "count")
    return tuple(ops.top_logprobs(*(inputs[name] for name in names)))


def _cost(inputs: Inputs) -> Cost:
    elements = inputs["logits"].numel()
    return Cost(4 * elements, 4 * elements)


_ALL = "bias+seen+dry+mask"

SAMPLE = Op(
    name="sample",
    reference=sample,
    invoke=lambda ops, inputs: (ops.sample(inputs["logits"], inputs["rows"]),),
    cases=(
        Case("greedy", "exact", draw_logits(5, 100, "greedy")),
        Case("greedy-ties", "exact", draw_logits(5, 100, "greedy", levels=4)),
        Case("temperature", "exact", draw_logits(4, 333, "temperature")),
        Case("top_k", "exact", draw_logits(4, 333, "top_k")),
        Case("top_k-ties", "exact", draw_logits(4, 333, "top_k", levels=6)),
        Case("top_p", "exact", draw_logits(4, 333, "top_p")),
        Case("top_p-ties", "exact", draw_logits(4, 333, "top_p", levels=6)),
        Case("min_p", "exact", draw_logits(4, 333, "min_p")),
        Case("mixed", "exact", draw_logits(7, 1111, "mixed")),
        # Rows of a multiple of four logits, which may be loaded so.
        Case("mixed-fours", "exact", draw_logits(7, 1112, "mixed")),
        Case("temperature-fours", "exact", draw_logits(3, 9004, "temperature")),
        Case("top_p-fours", "exact", draw_logits(3, 17004, "top_p")),
        Case("mixed-ties", "exact", draw_logits(7, 257, "mixed", levels=8)),
        # Wider than what a kernel is likely to take at once.
        Case("greedy-ties-wide", "exact", draw_logits(3, 9000, "greedy", levels=4)),
        Case("temperature-wide", "exact", draw_logits(4, 9001, "temperature")),
        Case("top_k-ties-wide", "exact", draw_logits(4, 9000, "top_k", levels=4)),
        Case("top_p-ties-wide", "exact", draw_logits(3, 5003, "top_p", levels=4)),
        Case("tiny-vocabulary", "exact", draw_logits(3, 2, "temperature")),
        Case("unusable-rows", "exact", draw_unusable),
        Case("adjusted-greedy", "exact", draw_logits(7, 333, "greedy", features=_ALL)),
        Case("adjusted", "exact", draw_logits(7, 1111, "mixed", features=_ALL)),
        Case("adjusted-wide", "exact", draw_logits(4, 9001, "top_p", features=_ALL)),
        Case("barren-rows", "exact", draw_barren),
    ),
    benchmarks=tuple(
        Case(f"{settings}-{rows}x{vocabulary}", "exact", draw_logits(rows, vocabulary, settings))
        for settings in ("greedy", "temperature", "mixed")
        for rows, vocabulary in ((1, 49152), (16, 49152), (1, 151936))
    )
    + tuple(
        Case(f"{settings}-16x49152", "exact", draw_logits(16, 49152, settings))
        for settings in ("top_k", "top_p", "min_p")
    ),
    tolerance={"exact": Tolerance(0.0, 0.0)},
    cost=_cost,
    order=("cuda", "triton", "native", "reference"),
    alone=_alone,
)

TOP_LOGPROBS = Op(
    name="top_logprobs",
    reference=top_logprobs,
    invoke=_invoke_top,
    cases=(
        Case("none", "float", _draw_rows(100, (0,), 0)),
        Case("best-5", "float", _draw_rows(1000, (3, 1), 5)),
        Case("ties", "float", _draw_rows(300, (0, 1, 2), 20, levels=6)),
        Case("ties-wide", "float", _draw_rows(9000, (0, 2), 20, levels=4)),
        Case("more-than-allowed", "float", _draw_rows(9, (1, 0), 9)),
        Case("all", "float", _draw_rows(7, (0,), 7)),
        Case("unusable-rows", "float", _draw_broken),
    ),
    benchmarks=(
        Case("best-5-1x49152", "float", _draw_rows(49152, (0,), 5)),
        Case("best-20-16x49152", "float", _draw_rows(49152, range(16), 20)),
    ),
    tolerance={"float": Tolerance(2e-5, 1e-5)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone_row,
)
