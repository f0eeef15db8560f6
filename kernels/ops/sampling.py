"""The ops `sample` and `top_logprobs`, as `kernels/sampler_inputs.py` specifies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.sampling_cases import barren_logits, random_logits, unusable_logits
from penstock.kernels.ops.sampling_reference import sample, top_logprobs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    return {"logits": inputs["logits"][index : index + 1], "rows": inputs["rows"].row(index)}


def _rows_inputs(
    vocabulary: int, selected: Sequence[int], count: int, num_distinct: int = 0
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the inputs of `top_logprobs` for the rows `selected`. A fifth of
    the logits is -inf. `num_distinct`: 0: any logits; otherwise logits are rounded, so that about
    `num_distinct` distinct logits remain and there are ties."""

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(max(selected) + 1, vocabulary) * 3
        if num_distinct:
            logits = (logits * num_distinct / 12).round() * 12 / num_distinct
        logits[:, 1::5] = float("-inf")
        return {
            "logits": logits,
            "rows": torch.tensor(selected, dtype=torch.int32),
            "tokens": source.integers(0, vocabulary, len(selected)),
            "count": count,
        }

    return make_inputs


def _broken_inputs(seed: int) -> dict[str, Any]:
    inputs = _rows_inputs(50, (0, 1, 2, 3), 4)(seed)
    logits = inputs["logits"]
    logits[0, 7], logits[1, 49], logits[2] = float("nan"), float("inf"), float("-inf")
    return inputs


def _alone_row(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    return {**inputs, "rows": inputs["rows"][one], "tokens": inputs["tokens"][one]}


def _cost(inputs: Inputs) -> Cost:
    elements = inputs["logits"].numel()
    return Cost(4 * elements, 4 * elements)


_ALL = "bias+seen+dry+mask"

SAMPLE = Op(
    name="sample",
    signature="update logits float32 [S, V]; rows SamplingRows; write out int32 [S]",
    reference=sample,
    cases=(
        Case("greedy", "exact", random_logits(5, 100, "greedy")),
        Case("greedy-ties", "exact", random_logits(5, 100, "greedy", num_distinct=4)),
        Case("temperature", "exact", random_logits(4, 333, "temperature")),
        Case("top_k", "exact", random_logits(4, 333, "top_k")),
        Case("top_k-ties", "exact", random_logits(4, 333, "top_k", num_distinct=6)),
        Case("top_p", "exact", random_logits(4, 333, "top_p")),
        Case("top_p-ties", "exact", random_logits(4, 333, "top_p", num_distinct=6)),
        Case("min_p", "exact", random_logits(4, 333, "min_p")),
        Case("mixed", "exact", random_logits(7, 1111, "mixed")),
        # The vocabulary is a multiple of four, so a kernel may load four logits at a time.
        Case("mixed-fours", "exact", random_logits(7, 1112, "mixed")),
        Case("temperature-fours", "exact", random_logits(3, 9004, "temperature")),
        Case("top_p-fours", "exact", random_logits(3, 17004, "top_p")),
        Case("mixed-ties", "exact", random_logits(7, 257, "mixed", num_distinct=8)),
        # More logits than a kernel is likely to load at once.
        Case("greedy-ties-wide", "exact", random_logits(3, 9000, "greedy", num_distinct=4)),
        Case("temperature-wide", "exact", random_logits(4, 9001, "temperature")),
        Case("top_k-ties-wide", "exact", random_logits(4, 9000, "top_k", num_distinct=4)),
        Case("top_p-ties-wide", "exact", random_logits(3, 5003, "top_p", num_distinct=4)),
        Case("tiny-vocabulary", "exact", random_logits(3, 2, "temperature")),
        Case("unusable-rows", "exact", unusable_logits),
        Case("adjusted-greedy", "exact", random_logits(7, 333, "greedy", features=_ALL)),
        Case("adjusted", "exact", random_logits(7, 1111, "mixed", features=_ALL)),
        Case("adjusted-wide", "exact", random_logits(4, 9001, "top_p", features=_ALL)),
        Case("barren-rows", "exact", barren_logits),
    ),
    benchmarks=tuple(
        Case(f"{settings}-{rows}x{vocabulary}", "exact", random_logits(rows, vocabulary, settings))
        for settings in ("greedy", "temperature", "mixed")
        for rows, vocabulary in ((1, 49152), (16, 49152), (1, 151936))
    )
    + tuple(
        Case(f"{settings}-16x49152", "exact", random_logits(16, 49152, settings))
        for settings in ("top_k", "top_p", "min_p")
    ),
    tolerance={"exact": Tolerance(0.0, 0.0)},
    cost=_cost,
    order=("cuda", "triton", "native", "reference"),
    native_kernels=("argmax", "sample"),
    alone=_alone,
)

TOP_LOGPROBS = Op(
    name="top_logprobs",
    signature=(
        "logits float32 [S, V]; rows int32 [R]; tokens int32 [R]; integer count; "
        "write own float32 [R]; write ids int32 [R, count]; write logprobs float32 [R, count]"
    ),
    reference=top_logprobs,
    cases=(
        Case("none", "float", _rows_inputs(100, (0,), 0)),
        Case("best-5", "float", _rows_inputs(1000, (3, 1), 5)),
        Case("ties", "float", _rows_inputs(300, (0, 1, 2), 20, num_distinct=6)),
        Case("ties-wide", "float", _rows_inputs(9000, (0, 2), 20, num_distinct=4)),
        Case("more-than-allowed", "float", _rows_inputs(9, (1, 0), 9)),
        Case("all", "float", _rows_inputs(7, (0,), 7)),
        Case("unusable-rows", "float", _broken_inputs),
    ),
    benchmarks=(
        Case("best-5-1x49152", "float", _rows_inputs(49152, (0,), 5)),
        Case("best-20-16x49152", "float", _rows_inputs(49152, range(16), 20)),
    ),
    tolerance={"float": Tolerance(2e-5, 1e-5)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone_row,
)
