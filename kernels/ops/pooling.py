"""The ops `mean_rows` and `l2_normalize`: the mean of the token vectors of a sequence, and scaling
of vectors to length one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance

_LEAST_LENGTH = 1e-12


def mean_rows(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Return for each sequence r the mean of the rows starts[r] : starts[r + 1] of x: [T, W], [R +
    1] -> [R, W]."""
    lengths = starts.diff().tolist()
    return torch.stack([part.mean(dim=0) for part in x.split(lengths)])


def l2_normalize(x: torch.Tensor) -> torch.Tensor:
    """Return x / max(|x|, 1e-12) for each row x: [R, W] -> [R, W]."""
    length: torch.Tensor = x.norm(dim=-1, keepdim=True)
    return x / length.clamp(min=_LEAST_LENGTH)


def _mean_inputs(lengths: Sequence[int], width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        starts = torch.tensor([0, *lengths]).cumsum(0).int()
        return {"x": RandomInputs(seed).normal(sum(lengths), width), "starts": starts}

    return make_inputs


def _normalize_inputs(rows: int, width: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(rows, width) * torch.exp(source.normal(rows, 1))
        if rows > 1:
            x[0] = 0
        return {"x": x}

    return make_inputs


def _mean_alone(inputs: Inputs, index: int) -> dict[str, Any]:
    begin, end = inputs["starts"][index : index + 2].tolist()
    return {
        "x": inputs["x"][begin:end].clone(),
        "starts": torch.tensor([0, end - begin], dtype=torch.int32),
    }


def _mean_cost(inputs: Inputs) -> Cost:
    tokens, width = inputs["x"].shape
    return Cost(4 * width * (tokens + len(inputs["starts"]) - 1), tokens * width)


_ORDER = ("triton", "native", "reference")

MEAN_ROWS = Op(
    name="mean_rows",
    signature="x float [T, W]; starts int32 [R+1]; write out float [R, W]",
    reference=mean_rows,
    cases=(
        Case("one-token", "float", _mean_inputs((1,), 32)),
        Case("mixed", "float", _mean_inputs((5, 1, 17, 64), 384)),
        Case("odd-width", "float", _mean_inputs((3, 130, 2), 100)),
    ),
    benchmarks=(Case("minilm-16x32", "float", _mean_inputs((32,) * 16, 384)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=_mean_cost,
    order=_ORDER,
    alone=_mean_alone,
)
L2_NORMALIZE = Op(
    name="l2_normalize",
    signature="x float [R, W]; write out float [R, W]",
    reference=l2_normalize,
    cases=tuple(
        Case(f"R{rows}-W{width}", "float", _normalize_inputs(rows, width))
        for rows, width in ((1, 32), (4, 384), (9, 100), (3, 1024))
    ),
    benchmarks=(Case("minilm-R32", "float", _normalize_inputs(32, 384)),),
    tolerance={"float": Tolerance(1e-6, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 3 * inputs["x"].numel()),
    order=_ORDER,
    alone=lambda inputs, index: {"x": inputs["x"][index : index + 1]},
)
