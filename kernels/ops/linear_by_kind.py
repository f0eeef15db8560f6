"""The op `linear_by_kind`: a linear layer in which the rows of prompt tokens may be multiplied in
bfloat16 (docs/decisions/0026-prompts-through-tiles.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.linear import LINEAR, ReferenceLinear, linear, pack_linear
from penstock.kernels.registry import Case, Inputs, Op, Tolerance
from penstock.kernels.weights import Linear, Matrix


def linear_by_kind(
    x: torch.Tensor, weight: ReferenceLinear, is_prompt: torch.Tensor
) -> torch.Tensor:
    """Return linear(x, weight): [T, C] -> [T, N]. In rows whose `is_prompt` is 1, the operands of
    integer parts are x and the dequantized weight, both rounded to bfloat16, half to even.

    An implementation may compute all rows alike.
    """
    rounded = x.to(torch.bfloat16).to(x.dtype)
    columns = [
        rounded @ part.to(torch.bfloat16).to(x.dtype).T if integer else x @ part.T
        for part, integer in weight.parts
    ]
    y = torch.cat(columns, dim=-1)
    of_prompts = y if weight.bias is None else y + weight.bias
    return torch.where(is_prompt[:, None] != 0, of_prompts, linear(x, weight))


def _invoke(ops: Any, inputs: Inputs) -> tuple[Any, ...]:
    packed = ops.pack_linear(inputs["weight"])
    return (ops.linear_by_kind(inputs["x"], packed, inputs["is_prompt"]),)


def _matrix(source: RandomInputs, rows: int, width: int, like: str) -> Matrix:
    if like == "f16":
        return source.dense(rows, width, "f16")
    return source.affine(rows, width, like)


def _inputs(
    like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str
) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        formats = like.split("+") * (len(rows) if "+" not in like else 1)
        pairs = zip(rows, formats, strict=True)
        parts = tuple(_matrix(source, count, width, form) for count, form in pairs)
        offset = source.normal(sum(rows)).numpy() if bias else None
        return {
            "x": source.quantizable(tokens, width),
            "weight": Linear(parts, offset),
            "is_prompt": source.integers(0, 2, tokens),
        }

    return make_inputs


def _case(like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str = "") -> Case:
    shape = "+".join(map(str, rows))
    name = f"{like}-T{tokens}-C{width}-N{shape}{'-' + bias if bias else ''}"
    return Case(name, "prompt", _inputs(like, tokens, width, rows, bias))


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    rows = slice(index, index + 1)
    return {**inputs, "x": inputs["x"][rows], "is_prompt": inputs["is_prompt"][rows]}


LINEAR_BY_KIND = Op(
    name="linear_by_kind",
    signature="x float [T, C]; weight packed [N, C]; is_prompt int32 [T]; write out float [T, N]",
    reference=linear_by_kind,
    pack=pack_linear,
    custom_invoke=_invoke,
    cases=(
        _case("q4_0", 1, 64, (16,)),
        _case("q4_0", 19, 576, (70,)),
        _case("q4_1", 40, 576, (24, 8, 8), "bias"),
        _case("q4_1", 65, 64, (33,)),
        _case("q5_0", 9, 96, (20,)),
        _case("q5_1", 16, 64, (17,)),
        _case("q8_0", 34, 288, (31,), "bias"),
        _case("q2_k", 20, 288, (24,)),
        _case("q3_k", 18, 512, (40,)),
        _case("q4_k", 70, 2304, (48,)),
        _case("q5_k", 12, 256, (32,)),
        _case("q6_k", 33, 288, (24,)),
        _case("iq4_nl", 9, 96, (40,)),
        _case("iq4_xs", 20, 256, (40,), "bias"),
        _case("mxfp4", 20, 64, (33,)),
        _case("nvfp4", 20, 288, (24,), "bias"),
        _case("iq2_xs", 9, 512, (40,)),
        _case("int4_g96_minima", 20, 320, (24,)),
        _case("int8_rows", 9, 160, (33,), "bias"),
        _case("q4_k+q6_k+f16", 20, 256, (32, 16, 16), "bias"),
    ),
    benchmarks=(),
    tolerance={
        # Operands that are not rounded to bfloat16 differ from the reference's by up to 2^-9: y, of
        # size 14, by up to 0.19.
        "prompt": Tolerance(3e-1, 1e-2),
        # Rounded operands are the reference's, so that only float32 sums differ.
        "prompt-by-tiles": Tolerance(1e-3, 1e-4),
    },
    cost=LINEAR.cost,
    order=("native", "reference"),
    native_kernels=("round_rows", "linear_prompt"),
    alone=_alone,
)
