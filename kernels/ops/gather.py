"""The op `gather_rows`: selects the rows whose logits are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def gather_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return x[rows]: [T, W], [S] int32 -> [S, W]."""
    return x[rows.long()]


def _inputs(tokens: int, width: int, rows: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        selected = source.integers(0, tokens, rows)
        selected[-1:] = tokens - 1
        return {"x": source.normal(tokens, width), "rows": selected}

    return make_inputs


def _cost(inputs: Inputs) -> Cost:
    rows = len(inputs["rows"])
    return Cost(4 * rows + 8 * rows * inputs["x"].shape[1], 0)


GATHER_ROWS = Op(
    name="gather_rows",
    signature="x float [T, W]; rows int32 [S]; write out float [S, W]",
    reference=gather_rows,
    cases=tuple(
        Case(f"T{tokens}-W{width}-S{rows}", "exact", _inputs(tokens, width, rows))
        for tokens, width, rows in (
            (1, 32, 1),
            (17, 100, 5),
            (9, 576, 9),
            (4, 64, 12),
            (3, 1100, 2),
        )
    ),
    benchmarks=(Case("smollm2-T512-S32", "exact", _inputs(512, 576, 32)),),
    tolerance={"exact": Tolerance(0.0, 0.0)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {**inputs, "rows": inputs["rows"][index : index + 1]},
)
