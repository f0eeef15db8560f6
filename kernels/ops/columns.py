"""The op `norm_columns`, which normalizes some columns of activations in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.norm import rms_norm
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def norm_columns(
    x: torch.Tensor, weight: torch.Tensor, first: int, group: int, eps: float
) -> torch.Tensor:
    """Normalize the columns `first` to `first + len(weight)` of x [T, W] in place, each `group` of
    them on its own, multiply them by `weight`, and return x."""
    columns = slice(first, first + len(weight))
    each = x[:, columns].unflatten(1, (-1, group))
    x[:, columns] = rms_norm(each, weight.unflatten(0, (-1, group)), eps).flatten(1)
    return x


def _inputs(
    tokens: int, width: int, first: int, columns: int, group: int
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(tokens, width) * torch.exp(source.normal(tokens, 1))
        if tokens > 1:
            x[0] = 0  # only eps keeps this row from a division by zero
        weight = source.normal(columns)
        return {"x": x, "weight": weight, "first": first, "group": group, "eps": 1e-5}

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    return {**inputs, "x": inputs["x"][index : index + 1]}


def _cost(inputs: Inputs) -> Cost:
    columns = len(inputs["weight"])
    elements = len(inputs["x"]) * columns
    return Cost(4 * (2 * elements + columns), 4 * elements)


NORM_COLUMNS = Op(
    name="norm_columns",
    signature=(
        "update x float [T, W]; weight float32 [columns]; integer first; integer group; real eps"
    ),
    reference=norm_columns,
    cases=(
        Case("whole", "float", _inputs(3, 96, 0, 96, 96)),
        Case("queries", "float", _inputs(5, 256, 0, 128, 128)),
        Case("keys", "float", _inputs(17, 256, 128, 64, 64)),
        Case("heads", "float", _inputs(4, 192, 64, 96, 32)),
        Case("odd", "float", _inputs(2, 100, 7, 60, 20)),
        Case("one", "float", _inputs(1, 1536, 0, 1536, 1536)),
    ),
    benchmarks=(
        Case("olmo2-7b-T1", "float", _inputs(1, 12288, 0, 4096, 4096)),
        Case("olmo2-7b-T512", "float", _inputs(512, 12288, 0, 4096, 4096)),
    ),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=_alone,
)
