"""The op `adjust_logits`: adjusts logits before sampling, as `kernels/sampler_inputs.py`
specifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.adjust_reference import adjust_logits
from penstock.kernels.ops.sampling_cases import plain_rows, random_features
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.sampler_inputs import SamplingRows


def _inputs(rows: int, vocabulary: int, features: str) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(rows, vocabulary) * 3
        return {"logits": logits, "rows": random_features(source, rows, vocabulary, features)}

    return make_inputs


def _hard_inputs(seed: int) -> dict[str, Any]:
    """Return inputs with every adjustment, whose logits include infinities, NaN and numbers near
    the largest float32. One mask allows no token."""
    source = RandomInputs(seed)
    logits = source.normal(6, 40) * 3
    logits[:, :10] *= 1e38
    logits[:, 10::7] = float("-inf")
    logits[1, 11::7] = float("inf")
    logits[2, 12::7] = float("nan")
    rows = random_features(source, 6, 40, "bias+seen+dry+mask")
    assert rows.masks is not None and rows.mask_of is not None and rows.seen is not None
    rows.seen.repetition[3:5] = 1e-20, 1e20
    rows.masks[0], rows.mask_of[5] = 0, 0
    rows.masks[:, 1] |= np.uint32(0xFFFFFF00)  # bits beyond the vocabulary
    return {"logits": logits, "rows": rows}


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    return {"logits": inputs["logits"][index : index + 1], "rows": inputs["rows"].row(index)}


def _invoke(ops: Any, inputs: Inputs) -> tuple[Any, ...]:
    barren = ops.adjust_logits(inputs["logits"], inputs["rows"])
    return inputs["logits"], barren


def _cost(inputs: Inputs) -> Cost:
    """Return the cost of a case: a listed token's logit is read and written, and a mask reads and
    writes all logits of its row."""
    rows: SamplingRows = inputs["rows"]
    lists = (rows.bias, rows.seen, rows.dry)
    listed = sum(len(part.tokens) for part in lists if part is not None)
    masked = 0 if rows.mask_of is None else int((rows.mask_of >= 0).sum())
    count, vocabulary = inputs["logits"].shape
    elements = masked * vocabulary
    return Cost(4 * count + 16 * listed + 8 * elements, 4 * listed + elements)


def _plain_inputs(seed: int) -> dict[str, Any]:
    source = RandomInputs(seed)
    return {"logits": source.normal(3, 50), "rows": plain_rows(source, 3)}


ADJUST_LOGITS = Op(
    name="adjust_logits",
    signature="update logits float32 [S, V]; rows SamplingRows; write barren int32 [S]",
    reference=adjust_logits,
    custom_invoke=_invoke,
    cases=(
        Case("nothing", "float", _plain_inputs),
        Case("bias", "float", _inputs(4, 100, "bias")),
        Case("seen", "float", _inputs(5, 333, "seen")),
        Case("dry", "float", _inputs(4, 333, "dry")),
        Case("mask", "float", _inputs(5, 333, "mask")),
        Case("mask-whole-words", "float", _inputs(3, 96, "mask")),
        Case("mask-one-over", "float", _inputs(3, 97, "mask")),
        Case("mask-wide", "float", _inputs(3, 9001, "mask")),
        Case("all", "float", _inputs(7, 1111, "bias+seen+dry+mask")),
        Case("all-wide", "float", _inputs(3, 9000, "bias+seen+dry+mask")),
        Case("tiny-vocabulary", "float", _inputs(3, 2, "bias+seen+dry+mask")),
        Case("hard-numbers", "float", _hard_inputs),
    ),
    benchmarks=tuple(
        Case(f"{features}-16x49152", "float", _inputs(16, 49152, features))
        for features in ("bias", "seen", "dry", "mask", "bias+seen+dry+mask")
    ),
    tolerance={"float": Tolerance(4e-6, 1e-6)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone,
)
