"""Choosing tokens from logits, as `kernels/sampling.py` states it; and log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.draw import Draw
from penstock.kernels.op import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.ops.sampling_cases import draw_logits, draw_unusable
from penstock.kernels.ops.sampling_reference import sample, top_logprobs
from penstock.kernels.sampling import SamplingRows


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    rows, one = inputs["rows"], slice(index, index + 1)
    names = ("temperature", "top_k", "top_p", "min_p", "seed", "position")
    single = SamplingRows(*(getattr(rows, name)[one] for name in names))
    return {"logits": inputs["logits"][one], "rows": single}


def _draw_row(vocabulary: int, count: int, levels: int = 0) -> Callable[[int], dict[str, Any]]:
    def draw(seed: int) -> dict[str, Any]:
        logits = Draw(seed).normal(vocabulary) * 3
        if levels:
            logits = (logits * levels / 12).round() * 12 / levels
        return {"logits": logits, "token": vocabulary - 1, "count": count}

    return draw


def _invoke_top(ops: Any, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    own, best = ops.top_logprobs(inputs["logits"], inputs["token"], inputs["count"])
    ids = torch.tensor([token for token, _ in best], dtype=torch.int32)
    return torch.tensor([own, *(logprob for _, logprob in best)], dtype=torch.float64), ids


def _cost(inputs: Inputs) -> Cost:
    elements = inputs["logits"].numel()
    return Cost(4 * elements, 4 * elements)


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
        Case("mixed-ties", "exact", draw_logits(7, 257, "mixed", levels=8)),
        # Wider than what a kernel is likely to take at once.
        Case("greedy-ties-wide", "exact", draw_logits(3, 9000, "greedy", levels=4)),
        Case("temperature-wide", "exact", draw_logits(4, 9001, "temperature")),
        Case("top_k-ties-wide", "exact", draw_logits(4, 9000, "top_k", levels=4)),
        Case("top_p-ties-wide", "exact", draw_logits(3, 5003, "top_p", levels=4)),
        Case("tiny-vocabulary", "exact", draw_logits(3, 2, "temperature")),
        Case("unusable-rows", "exact", draw_unusable),
    ),
    benchmarks=tuple(
        Case(f"{settings}-{rows}x{vocabulary}", "exact", draw_logits(rows, vocabulary, settings))
        for settings in ("greedy", "temperature", "mixed")
        for rows, vocabulary in ((1, 49152), (16, 49152), (1, 151936))
    ),
    tolerance={"exact": Tolerance(0.0, 0.0)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone,
)

TOP_LOGPROBS = Op(
    name="top_logprobs",
    reference=top_logprobs,
    invoke=_invoke_top,
    cases=(
        Case("none", "float", _draw_row(100, 0)),
        Case("best-5", "float", _draw_row(1000, 5)),
        Case("ties", "float", _draw_row(300, 20, levels=6)),
        Case("all", "float", _draw_row(7, 7)),
    ),
    benchmarks=(Case("smollm2-best-5", "float", _draw_row(49152, 5)),),
    tolerance={"float": Tolerance(2e-5, 1e-5)},
    cost=_cost,
    order=("native", "reference"),
)
