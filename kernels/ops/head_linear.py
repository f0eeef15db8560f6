"""The op `head_linear`: the product of each head with a matrix of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.latent_ops import head_matrices
from penstock.kernels.ops.dequantize import dequantize
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.weights import FloatName, Linear


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """The matrices of all heads: `data: [heads, N, C]`."""

    data: torch.Tensor


def pack_head_linear(weight: Linear, device: str = "cpu", dtype: Any = torch.float32) -> Any:
    """Return the matrices of all heads in `dtype`. Raises ValueError for weights that
    `head_matrices` refuses."""
    stacked = torch.stack([dequantize(part, dtype) for part in head_matrices(weight)])
    return HeadMatrices(stacked.to(device))


def head_linear(x: torch.Tensor, weight: HeadMatrices) -> torch.Tensor:
    """Return the product of each head's columns of x with its matrix: [T, heads * C] -> [T, heads *
    N]."""
    by_head = x.unflatten(-1, (len(weight.data), -1))
    return torch.einsum("thc,hnc->thn", by_head, weight.data).flatten(1)


def random_heads(
    source: RandomInputs, heads: int, rows: int, width: int, like: FloatName
) -> Linear:
    """Return random matrices [rows, width] of all heads."""
    return Linear(tuple(source.dense(rows, width, like) for _ in range(heads)))


def _inputs(
    like: FloatName, tokens: int, heads: int, rows: int, width: int
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.normal(tokens, heads * width)
        return {"x": x, "weight": random_heads(source, heads, rows, width, like)}

    return make_inputs


def _case(like: FloatName, tokens: int, heads: int, rows: int, width: int) -> Case:
    name = f"{like}-T{tokens}-H{heads}-C{width}-N{rows}"
    return Case(name, like, _inputs(like, tokens, heads, rows, width))


def _cost(inputs: Inputs) -> Cost:
    tokens, columns = inputs["x"].shape
    rows, width = inputs["weight"].shape
    weights = sum(part.data.nbytes for part in inputs["weight"].parts)
    return Cost(weights + 4 * tokens * (columns + rows), 2 * tokens * rows * width)


HEAD_LINEAR = Op(
    name="head_linear",
    signature="x float [T, columns]; weight packed [N, C]; write out float [T, N]",
    reference=head_linear,
    pack=pack_head_linear,
    cases=(
        _case("f32", 1, 1, 8, 32),
        _case("f32", 37, 5, 24, 40),
        _case("f16", 9, 4, 40, 64),
        _case("bf16", 1, 16, 128, 512),
        _case("bf16", 33, 3, 70, 96),
        _case("bf16", 70, 4, 64, 128),
    ),
    benchmarks=(
        *(_case("bf16", tokens, 128, 128, 512) for tokens in (1, 16, 512)),
        *(_case("bf16", tokens, 16, 128, 512) for tokens in (1, 512)),
    ),
    tolerance={
        "f32": Tolerance(2e-5, 1e-5),
        "f16": Tolerance(3e-3, 1e-3),
        "bf16": Tolerance(3e-2, 1e-2),
    },
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {**inputs, "x": inputs["x"][index : index + 1]},
)
