"""The native mixture of experts: the bits of its linear layers, and invalid choices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from native_isas import ISAS

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.routing import Routing
from penstock.kernels.weights import Experts, Linear

COUNT, FF, WIDTH = 5, 32, 256


def random_experts(gate: str, down: str) -> Experts:
    source = RandomInputs(3)

    def matrices(rows: int, width: int, like: str) -> tuple[Any, ...]:
        if like in ("f32", "f16", "bf16"):
            return tuple(source.dense(rows, width, like) for _ in range(COUNT))  # type: ignore[arg-type]
        return tuple(source.affine(rows, width, like) for _ in range(COUNT))

    return Experts(matrices(FF, WIDTH, gate), matrices(FF, WIDTH, gate), matrices(WIDTH, FF, down))


@pytest.fixture(scope="module", params=ISAS)
def ops(request: pytest.FixtureRequest) -> NativeOps:
    return NativeOps.eager(Pool(2), request.param)


@pytest.mark.parametrize("tokens", [1, 3, 230])
@pytest.mark.parametrize(
    ("gate", "down"), [("f32", "f32"), ("bf16", "f16"), ("q4_k", "q8_0"), ("q6_k", "bf16")]
)
def test_an_expert_has_the_bits_of_its_linear_layers(
    ops: NativeOps, tokens: int, gate: str, down: str
) -> None:
    """One expert per token, whose share is 1. Some expert has more rows than a task computes."""
    weights = random_experts(gate, down)
    source = RandomInputs(1)
    x = source.normal(tokens, WIDTH).numpy()
    chosen = np.maximum(source.integers(0, COUNT, tokens, 1).numpy(), 0)
    chosen[chosen == 2] = 3  # one is never chosen
    chosen[tokens // 4 : tokens // 4 * 3] = 4
    shares = np.ones((tokens, 1), np.float32)
    got = ops.experts(x, chosen, shares, ops.pack_experts(weights))
    for expert in np.unique(chosen):
        pair = Linear((weights.gate[expert], weights.up[expert]))
        rows = np.flatnonzero(chosen[:, 0] == expert)
        inner = ops.silu_mul(ops.linear(np.ascontiguousarray(x[rows]), ops.pack_linear(pair)))
        expected = ops.linear(inner, ops.pack_linear(Linear((weights.down[expert],))))
        assert got[rows].tobytes() == expected.tobytes()


@pytest.mark.parametrize(("gate", "down"), [("f32", "f16"), ("mxfp4", "mxfp4"), ("q8_0", "f32")])
def test_experts_with_biases_have_the_bits_of_linear_layers_with_them(
    ops: NativeOps, gate: str, down: str
) -> None:
    weights, source = random_experts(gate, down), RandomInputs(4)
    opening = source.normal(COUNT, 2 * FF).numpy()
    closing = source.normal(COUNT, WIDTH).numpy()
    biased = replace(weights, gate_up_bias=opening, down_bias=closing)
    x = source.normal(70, WIDTH).numpy()
    chosen = source.integers(0, COUNT, 70, 1).numpy()
    got = ops.experts(x, chosen, np.ones((70, 1), np.float32), ops.pack_experts(biased))
    for expert in range(COUNT):
        rows = np.flatnonzero(chosen[:, 0] == expert)
        pair = Linear((weights.gate[expert], weights.up[expert]), opening[expert])
        inner = ops.silu_mul(ops.linear(np.ascontiguousarray(x[rows]), ops.pack_linear(pair)))
        last = Linear((weights.down[expert],), closing[expert])
        assert got[rows].tobytes() == ops.linear(inner, ops.pack_linear(last)).tobytes()


def test_nan_stays_nan_through_a_clamped_activation(ops: NativeOps) -> None:
    weights = replace(random_experts("f32", "f32"), activation="swiglu_oai")
    x = np.full((1, WIDTH), np.nan, np.float32)
    chosen, shares = np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)
    assert np.isnan(ops.experts(x, chosen, shares, ops.pack_experts(weights))).all()


def test_unknown_activation_is_refused(ops: NativeOps) -> None:
    weights = replace(random_experts("f32", "f32"), activation="gelu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"activation: must be silu, .* or swiglu_oai, got gelu"):
        ops.pack_experts(weights)


def test_choices_are_summed_with_their_shares(ops: NativeOps) -> None:
    weights = ops.pack_experts(random_experts("f32", "f32"))
    x = RandomInputs(2).normal(4, WIDTH).numpy()
    chosen = np.array([[0, 1], [1, 0], [4, 2], [3, 3]], np.int32)
    shares = np.array([[0.25, 0.75], [0.75, 0.25], [1, 0], [0.5, 0.5]], np.float32)
    got = ops.experts(x, chosen, shares, weights)
    ones = np.ones((4, 1), np.float32)
    parts = [
        ops.experts(x, np.ascontiguousarray(chosen[:, c : c + 1]), ones, weights) for c in (0, 1)
    ]
    expected = shares[:, :1] * parts[0] + shares[:, 1:] * parts[1]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrong", [-1, COUNT])
def test_expert_out_of_range_is_refused(ops: NativeOps, wrong: int) -> None:
    chosen = np.array([[0, 1], [2, wrong]], np.int32)
    x, shares = np.ones((2, WIDTH), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=rf"experts: chosen: {wrong} is not in 0..{COUNT - 1}"):
        ops.experts(x, chosen, shares, ops.pack_experts(random_experts("f32", "f32")))


def test_more_choices_than_experts_are_refused(ops: NativeOps) -> None:
    with pytest.raises(ValueError, match="top_k: exceeds E"):
        ops.route_experts(np.ones((1, 4), np.float32), Routing(5))


def test_experts_of_different_sizes_are_refused(ops: NativeOps) -> None:
    good, other = random_experts("f32", "f32"), RandomInputs(0).dense(FF + 1, WIDTH, "f32")
    for gate in ((*good.gate[:-1], other), good.gate[:-1]):
        pairs = Experts(gate, good.up[: len(gate)], good.down)
        with pytest.raises(ValueError, match="experts: "):
            ops.pack_experts(pairs)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinite_logits_choose_valid_distinct_experts(ops: NativeOps, odd: float) -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)).numpy()
    logits[1], logits[2, 4], logits[3, ::2] = odd, odd, odd
    logits[4, 0] = -odd
    chosen, _ = ops.route_experts(logits, Routing(5, renormalize=True))
    assert ((chosen >= 0) & (chosen < 9)).all()
    assert all(len(set(row)) == 5 for row in chosen.tolist())


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        (Routing(2, groups=4, groups_per_token=2), "groups: must divide E"),
        (Routing(4, groups=3, groups_per_token=1), "groups_per_token: must be at most"),
    ],
)
def test_groups_that_do_not_fit_the_experts_are_refused(
    ops: NativeOps, routing: Routing, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ops.route_experts(np.ones((1, 9), np.float32), routing)


def test_scales_of_experts_beside_a_bias_are_refused(ops: NativeOps) -> None:
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="expert_scale: is not supported with a bias"):
        ops.route_experts(ones[None], Routing(2), ones, ones)


def test_activation_that_needs_gates_is_refused_without_them(ops: NativeOps) -> None:
    weights = replace(random_experts("f32", "f32"), gate=(), activation="swiglu_oai")
    with pytest.raises(ValueError, match="activation: swiglu_oai needs gates"):
        ops.pack_experts(weights)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "routing",
    [
        Routing(3, "sigmoid", True, groups=3, groups_per_token=1),
        Routing(4, groups=3, groups_per_token=2, best_of_group=1),
        Routing(2, "sparsemixer", jitter=0.01),
    ],
)
def test_odd_logits_choose_valid_distinct_experts_by_every_rule(
    ops: NativeOps, odd: float, routing: Routing
) -> None:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)).numpy()
    logits[1], logits[2, 4], logits[3, ::2] = odd, odd, odd
    chosen, _ = ops.route_experts(logits, routing)
    assert ((chosen >= 0) & (chosen < 9)).all()
    assert all(len(set(row)) == routing.top_k for row in chosen.tolist())
