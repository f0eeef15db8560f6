"""Norms of heads outside `rope_cache`: `norm_values` normalizes values, `norm_rope` normalizes and
rotates the queries of a layer that reads another layer's cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.norm import rms_norm
from penstock.kernels.ops.rope_cache import rope_table, rotate
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance


def norm_values(x: torch.Tensor, heads: tuple[int, int, int], eps: float) -> torch.Tensor:
    """Return [q | k | norm(v)]: [T, C] -> [T, (H + 2 K) * D]. `x` is [q | k | v], or [q | k] in a
    layer whose values are its keys; the norm divides each head by the root of its mean square."""
    q_heads, kv_heads, dim = heads
    values = x[:, -kv_heads * dim :].unflatten(-1, (kv_heads, dim))
    normal = values / torch.sqrt(values.square().mean(dim=-1, keepdim=True) + eps)
    return torch.cat((x[:, : (q_heads + kv_heads) * dim], normal.flatten(1)), dim=-1)


def norm_rope(
    x: torch.Tensor,
    weight: torch.Tensor,
    rope: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """Normalize and rotate each head as `rope_cache` does: [T, H * D] -> [T, H * D]. `weight`:
    [D]."""
    heads = rms_norm(x.unflatten(-1, (-1, len(weight))), weight, eps)
    return rotate(heads, rope[positions.long()]).flatten(1).to(x.dtype)


def _values(tokens: int, heads: tuple[int, int, int], form: str) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        q_heads, kv_heads, dim = heads
        parts = q_heads + (2 if form == "values" else 1) * kv_heads
        x = RandomInputs(seed).normal(tokens, parts * dim)
        x[0, -dim:] = 0  # only eps keeps this head from a division by zero
        return {"x": x, "heads": heads, "eps": 1e-6}

    return make_inputs


def _queries(tokens: int, heads: int, dim: int, rotated: int) -> Callable[[int], dict[str, Any]]:
    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        return {
            "x": source.normal(tokens, heads * dim),
            "weight": source.normal(dim),
            "rope": rope_table(50, rotated),
            "positions": source.integers(0, 50, tokens),
            "eps": 1e-6,
        }

    return make_inputs


def _alone(inputs: Inputs, index: int) -> dict[str, Any]:
    one = slice(index, index + 1)
    return {**inputs, **{name: inputs[name][one] for name in ("x", "positions") if name in inputs}}


_ORDER = ("triton", "native", "reference")

NORM_VALUES = Op(
    name="norm_values",
    signature="x float [T, C]; heads Heads; real eps; write out float [T, H*D+2*K*D]",
    reference=norm_values,
    cases=(
        Case("values-T1", "float", _values(1, (4, 2, 32), "values")),
        Case("values-T17", "float", _values(17, (3, 1, 64), "values")),
        Case("values-T3-wide", "float", _values(3, (8, 1, 512), "values")),
        Case("keys-T5", "float", _values(5, (4, 2, 40), "keys")),
        Case("keys-T2-wide", "float", _values(2, (8, 4, 512), "keys")),
    ),
    benchmarks=(Case("gemma-e2b-T512", "float", _values(512, (8, 1, 256), "values")),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 2 * inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
NORM_ROPE = Op(
    name="norm_rope",
    signature=(
        "x float [T, N]; weight float32 [D]; rope float32 [positions, rotated]; "
        "positions int32 [T]; real eps; write out float [T, N]"
    ),
    reference=norm_rope,
    cases=(
        Case("T1-4x32", "float", _queries(1, 4, 32, 32)),
        Case("T17-3x64", "float", _queries(17, 3, 64, 64)),
        Case("T5-2x40-half", "float", _queries(5, 2, 40, 20)),
        Case("T2-8x512", "float", _queries(2, 8, 512, 512)),
    ),
    benchmarks=(Case("gemma-e2b-T512", "float", _queries(512, 8, 256, 256)),),
    tolerance={"float": Tolerance(1e-5, 1e-5)},
    cost=lambda inputs: Cost(8 * inputs["x"].numel(), 7 * inputs["x"].numel()),
    order=_ORDER,
    alone=_alone,
)
