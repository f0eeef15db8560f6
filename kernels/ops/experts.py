"""The op `experts`: the feed-forward layers of the experts that each token chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.activation import gelu_tanh, gelu_tanh_mul, silu, silu_mul
from penstock.kernels.ops.dequantize import stored_bytes
from penstock.kernels.ops.linear import FLOAT8_GROUP, ReferenceLinear, linear, pack_linear
from penstock.kernels.ops.route_experts import route_experts
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.routing import Routing
from penstock.kernels.weights import Experts, Float8, Linear, Matrix


@dataclass(frozen=True, slots=True)
class ReferenceExperts:
    """The dequantized linear layers of the experts, one entry per expert.

    `opening`: layers [2 F, W], or [F, W] without gates.
    `down`: layers [W, F].
    `activate`: the function between the two layers.
    `scales_input`: whether shares scale the input of experts.
    """

    opening: tuple[ReferenceLinear, ...]
    down: tuple[ReferenceLinear, ...]
    activate: Callable[[torch.Tensor], torch.Tensor]
    scales_input: bool


def pack_experts(
    weights: Experts, device: str = "cpu", dtype: Any = torch.float32
) -> ReferenceExperts:
    """Return the experts with every matrix dequantized to `dtype`."""
    none = (None,) * len(weights.up)
    opening = none if weights.gate_up_bias is None else tuple(weights.gate_up_bias)
    closing = none if weights.down_bias is None else tuple(weights.down_bias)

    def packed(parts: tuple[Matrix, ...], bias: npt.NDArray[np.float32] | None) -> ReferenceLinear:
        return pack_linear(Linear(parts, bias), device, dtype)

    return ReferenceExperts(
        tuple(starmap(packed, zip(weights.opening, opening, strict=True))),
        tuple(packed((down,), bias) for down, bias in zip(weights.down, closing, strict=True)),
        (_GATED if weights.gate else _PLAIN)[weights.activation],
        weights.shares_scale == "input",
    )


def swiglu_oai(gate_up: torch.Tensor) -> torch.Tensor:
    """Return (up + 1) * gate * sigmoid(1.702 * gate) for gate_up = [gate | up], with gate clamped
    to at most 7 and up to -7 .. 7: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return (up + 1) * gate * torch.sigmoid(1.702 * gate)


def relu_squared(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2: [T, F] -> [T, F]."""
    return torch.relu(x).square()


def relu_squared_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return max(gate, 0)^2 * up for gate_up = [gate | up]: [T, 2 F] -> [T, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return relu_squared(gate) * up


_PLAIN = {"silu": silu, "gelu_tanh": gelu_tanh, "relu_squared": relu_squared}
_GATED = {
    "silu": silu_mul,
    "gelu_tanh": gelu_tanh_mul,
    "relu_squared": relu_squared_mul,
    "swiglu_oai": swiglu_oai,
}


def experts(
    x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, weights: ReferenceExperts
) -> torch.Tensor:
    """Return the sum over k of shares[t, k] * expert(x[t]) or, if shares scale the input, of
    expert(shares[t, k] * x[t]), computed by expert chosen[t, k]: [T, W] -> [T, W]. expert(x) is
    down(act(gate(x), up(x))). Operands of products may be rounded as in `linear`."""
    shares = shares[:, :, None].to(x.dtype)
    parts = x.new_zeros(*chosen.shape, x.shape[1])
    for number, (opening, down) in enumerate(zip(weights.opening, weights.down, strict=True)):
        token, place = torch.nonzero(chosen == number, as_tuple=True)
        if len(token):
            own = x[token] * shares[token, place] if weights.scales_input else x[token]
            parts[token, place] = linear(weights.activate(linear(own, opening)), down)
    return (parts if weights.scales_input else parts * shares).sum(dim=1)


_FLOATS = frozenset({"bf16", "f16", "f32"})
_FLOAT8 = frozenset({"f8_row", "f8_tile"})
_ONE = 0x38  # 1 in float8_e4m3fn


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of a mixture of experts.

    `count`: number of experts, E.
    `top_k`: chosen experts per token.
    `ff`: feed-forward width of an expert, F.
    `width`: model width, W.
    """

    count: int
    top_k: int
    ff: int
    width: int


def _matrices(
    source: RandomInputs, count: int, rows: int, width: int, like: str
) -> tuple[Matrix, ...]:
    if like in _FLOAT8:
        block = (1, width) if like == "f8_row" else (128, 128)
        return tuple(source.float8(rows, width, block) for _ in range(count))
    if like in _FLOATS:
        return tuple(source.dense(rows, width, like) for _ in range(count))  # type: ignore[arg-type]
    return tuple(source.affine(rows, width, like) for _ in range(count))


def _inputs(
    like: Mapping[str, str], tokens: int, sizes: _Sizes, favourites: int = 0, oai: bool = False
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the inputs of a case.

    `like`: format of each of the matrices "gate", "up" and "down".
    `favourites`: number of experts from which tokens choose; 0: all.
    `oai`: whether the experts have the biases and the activation of gpt-oss; some gates and ups
        then exceed the clamping limits.
    """

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        logits = source.normal(tokens, sizes.count)
        if favourites:
            logits[:, favourites:] -= 100
        chosen, shares = route_experts(logits, Routing(sizes.top_k, renormalize=True))
        gate, up = (
            _matrices(source, sizes.count, sizes.ff, sizes.width, like[name])
            for name in ("gate", "up")
        )
        down = _matrices(source, sizes.count, sizes.width, sizes.ff, like["down"])
        weights = Experts(gate, up, down)
        if oai:
            opening = source.normal(sizes.count, 2 * sizes.ff).numpy()
            opening[:, ::7] *= 8
            closing = source.normal(sizes.count, sizes.width).numpy()
            weights = Experts(gate, up, down, opening, closing, "swiglu_oai")
        return {
            "x": source.normal(tokens, sizes.width)
            if (_FLOATS | _FLOAT8).issuperset(like.values())
            else source.quantizable(tokens, sizes.width),
            "chosen": chosen,
            "shares": shares,
            "weights": weights,
        }

    return make_inputs


def _variant(case: Case, form: str) -> Case:
    """Return the case for another kind of experts. `form`: an activation; before it "plain-" for
    experts without gates, and after it "-input" for shares that scale the input."""

    def make_inputs(seed: int) -> dict[str, Any]:
        inputs = case.make_inputs(seed)
        activation = form.removeprefix("plain-").removesuffix("-input")
        weights = replace(inputs["weights"], activation=activation)
        if form.startswith("plain-"):
            biases = weights.gate_up_bias
            weights = replace(
                weights,
                gate=(),
                gate_up_bias=None if biases is None else biases[:, biases.shape[1] // 2 :].copy(),
            )
        if form.endswith("-input"):
            weights = replace(weights, shares_scale="input")
        return {**inputs, "weights": weights}

    return Case(f"{case.name}-{form}", case.kind, make_inputs)


def _float8_inputs(
    like: str, tokens: int, sizes: _Sizes, form: str
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes inputs with enough tokens per expert for a kernel to round
    activations to 8-bit floats.

    `form` selects the inputs:

    - "": 8-bit floats represent the activations exactly.
    - "nan": like "", but one activation is NaN.
    - "exact": like "", and 8-bit floats also represent the operands of the second product exactly.
    - "rounded": any activations.
    """
    any_inputs = _inputs(dict.fromkeys(("gate", "up", "down"), like), tokens, sizes)

    def make_inputs(seed: int) -> dict[str, Any]:
        inputs, source = any_inputs(seed), RandomInputs(seed + 1)
        if form == "rounded":
            return inputs
        group = sizes.width if like == "f8_row" else FLOAT8_GROUP
        x = inputs["x"] = source.representable(tokens, sizes.width, group)
        if form == "nan":
            x[1, sizes.width // 2] = float("nan")
        if form == "exact":
            x[:, -group:] *= torch.where(x[:, -1:] < 0, -1.0, 1.0)
            x[:, -1] = x[:, -group:].abs().amax(dim=1)
            weights = inputs["weights"]
            gate = tuple(_last_column(one) for one in weights.gate)
            up = tuple(_shuffling(source, one, group) for one in weights.up)
            inputs["weights"] = Experts(gate, up, weights.down)
        return inputs

    return make_inputs


def _last_column(matrix: Float8) -> Float8:
    """Return a matrix of the shape of `matrix` that multiplies the last input by 64 for every
    output. silu leaves the result unchanged if that input is at least 1/2."""
    codes = np.zeros_like(matrix.codes)
    codes[:, -1] = _ONE
    return Float8(codes, np.full_like(matrix.scale, 64.0), matrix.block)


def _shuffling(source: RandomInputs, matrix: Float8, group: int) -> Float8:
    """Return a matrix of the shape of `matrix` in which each row selects one input, times a
    constant. The rows of a group select the inputs of that group in random order."""
    (rows, _), scale = matrix.shape, 0.004 * matrix.scale / matrix.scale.max()
    assert rows % group == 0, "rows must be whole groups"
    codes = np.zeros_like(matrix.codes)
    starts = range(0, rows, group)
    column = np.concatenate([start + source.numpy.permutation(group) for start in starts])
    codes[np.arange(rows), column] = _ONE
    if matrix.block[0] == 1:  # the results of a group need the same scale
        scale = np.full_like(matrix.scale, 0.004)
    return Float8(codes, scale, matrix.block)


def _case(
    name: str,
    tokens: int,
    sizes: _Sizes,
    down: str | None = None,
    up: str | None = None,
    favourites: int = 0,
    oai: bool = False,
) -> Case:
    """Return a case. `name` starts with the format of the gate matrices; `up` and `down` are the
    formats of the other matrices, by default the format of the gates."""
    gate = name.partition("-")[0]
    like = {"gate": gate, "up": up or gate, "down": down or gate}
    formats = set(like.values())
    floats = [kind for kind in ("bf16", "f16", "f32") if kind in formats]
    integer = not _FLOATS.issuperset(formats)
    if formats & _FLOAT8:
        kind = "float8"
    else:
        kind = "mixed" if integer and floats else "integer" if integer else floats[0]
    title = f"{name}-T{tokens}-E{sizes.count}-top{sizes.top_k}-F{sizes.ff}-W{sizes.width}"
    return Case(title, kind, _inputs(like, tokens, sizes, favourites, oai))


def _float8_case(like: str, tokens: int, sizes: _Sizes, form: str = "") -> Case:
    """Return a case whose products may run on 8-bit tensor cores; see `_float8_inputs`."""
    size = f"T{tokens}-E{sizes.count}-top{sizes.top_k}-F{sizes.ff}-W{sizes.width}"
    name = f"{like}-narrow-{form + '-' if form else ''}{size}"
    kind = "float8-rounded" if form == "rounded" else "float8"
    return Case(name, kind, _float8_inputs(like, tokens, sizes, form))


def _cost(inputs: Inputs) -> Cost:
    """Return the cost of a case: bytes of the activations and of the weights of chosen experts
    (other weights are not read), and operations of the three products."""
    weights, chosen = inputs["weights"], inputs["chosen"]
    _, ff, width = weights.shape
    moved = sum(
        stored_bytes(matrix[number])
        for number in torch.unique(chosen).tolist()
        for matrix in (weights.gate, weights.up, weights.down)
        if matrix
    )
    tokens, products = len(chosen), 3 if weights.gate else 2
    return Cost(moved + 8 * tokens * width, 2 * products * chosen.numel() * ff * width)


_A3B = _Sizes(count=128, top_k=8, ff=768, width=2048)
"""The sizes of Qwen3-30B-A3B."""

EXPERTS = Op(
    name="experts",
    signature=(
        "x float [T, W]; chosen int32 [T, top_k]; shares float32 [T, top_k]; "
        "weights packed [E, F, W]; write out float [T, W]"
    ),
    reference=experts,
    pack=pack_experts,
    cases=(
        _case("f32", 1, _Sizes(4, 2, 24, 32)),
        _case("f32-uneven", 37, _Sizes(6, 3, 40, 50)),
        _case("f32-one-expert", 3, _Sizes(1, 1, 33, 64)),
        _case("f32-all-experts", 5, _Sizes(3, 3, 32, 48)),
        _case("f16", 9, _Sizes(8, 2, 32, 64)),
        _case("bf16", 1, _Sizes(8, 4, 64, 96)),
        _case("bf16-favourites", 70, _Sizes(8, 2, 32, 64), favourites=3),
        _case("f8_row", 3, _Sizes(4, 2, 40, 200)),
        _case("f8_tile", 5, _Sizes(4, 2, 128, 256)),
        _case("f8_tile-uneven", 3, _Sizes(3, 2, 136, 200)),
        _case("f8_tile-crowded", 70, _Sizes(2, 1, 40, 144)),
        _case("f8_tile-up-f8_row", 4, _Sizes(4, 2, 32, 64), up="f8_row"),
        # F is not a multiple of 128: the operands of the second product are not rounded
        _float8_case("f8_tile", 36, _Sizes(2, 1, 40, 256)),
        _float8_case("f8_row", 30, _Sizes(3, 2, 72, 384)),
        _float8_case("f8_tile", 40, _Sizes(2, 1, 40, 256), "nan"),
        _float8_case("f8_tile", 30, _Sizes(3, 2, 256, 384), "exact"),
        _float8_case("f8_row", 36, _Sizes(2, 1, 256, 256), "exact"),
        _float8_case("f8_tile", 40, _Sizes(2, 1, 256, 256), "rounded"),
        _float8_case("f8_row", 40, _Sizes(2, 1, 128, 256), "rounded"),
        _case("q4_0", 1, _Sizes(8, 2, 32, 64)),
        _case("q4_1", 34, _Sizes(5, 2, 96, 64)),
        _case("q5_0", 2, _Sizes(4, 2, 32, 96)),
        _case("q8_0-favourites", 41, _Sizes(6, 2, 64, 32), favourites=2),
        _case("q4_k-down-q6_k", 6, _Sizes(4, 2, 256, 256), down="q6_k"),
        _case("q3_k-down-q2_k", 5, _Sizes(4, 2, 256, 256), down="q2_k"),
        _case("q6_k", 7, _Sizes(4, 2, 32, 288), down="q8_0"),
        _case("int4_g128-down-int8_rows", 6, _Sizes(4, 2, 96, 160), down="int8_rows"),
        _case("int4_g96_minima", 40, _Sizes(3, 2, 128, 160)),
        _case("q8_0-crowded", 70, _Sizes(2, 1, 32, 64)),
        _case("f16-crowded", 70, _Sizes(2, 1, 48, 72)),
        _case("q5_1-up-f16-down-f32", 5, _Sizes(4, 2, 32, 64), up="f16", down="f32"),
        _case("mxfp4", 3, _Sizes(4, 2, 64, 96)),
        _case("mxfp4-oai", 1, _Sizes(8, 4, 96, 64), oai=True),
        _case("mxfp4-oai-favourites", 41, _Sizes(6, 2, 64, 96), favourites=2, oai=True),
        _case("f32-oai", 37, _Sizes(6, 3, 40, 50), oai=True),
        _case("bf16-oai", 5, _Sizes(4, 2, 64, 96), oai=True),
        _case("f8_row-oai", 3, _Sizes(4, 2, 40, 200), oai=True),
        _case("q8_0-oai-up-f16-down-f32", 5, _Sizes(4, 2, 32, 64), "f32", "f16", oai=True),
        _variant(_case("f32", 37, _Sizes(6, 3, 40, 50)), "gelu_tanh"),
        _variant(_case("q8_0", 3, _Sizes(4, 2, 32, 64)), "gelu_tanh"),
        _variant(_case("f32", 5, _Sizes(4, 2, 40, 50)), "relu_squared"),
        _variant(_case("f32", 37, _Sizes(6, 3, 40, 50)), "plain-relu_squared"),
        _variant(_case("f32-oai", 5, _Sizes(4, 2, 64, 96), oai=True), "plain-relu_squared"),
        _variant(_case("bf16", 5, _Sizes(4, 2, 64, 96)), "plain-relu_squared"),
        _variant(_case("q4_k", 34, _Sizes(4, 2, 256, 256), "q8_0"), "plain-relu_squared"),
        _variant(_case("f8_row", 3, _Sizes(4, 2, 40, 200)), "plain-relu_squared"),
        _variant(_case("f32", 3, _Sizes(4, 2, 40, 50)), "plain-silu"),
        _variant(_case("f32", 3, _Sizes(4, 2, 40, 50)), "plain-gelu_tanh"),
        _variant(_case("f32", 9, _Sizes(6, 3, 40, 50)), "silu-input"),
        _variant(_case("f16-oai", 9, _Sizes(6, 1, 40, 50), oai=True), "silu-input"),
        _variant(_case("q8_0", 35, _Sizes(6, 2, 32, 64)), "silu-input"),
    ),
    benchmarks=tuple(
        _case(f"{like}-30b-a3b", tokens, _A3B)
        for like, counts in (("q4_1", (1, 16, 512)), ("bf16", (1, 16)))
        for tokens in counts
    ),
    tolerance={
        "f32": Tolerance(2e-5, 2e-5),
        "f16": Tolerance(3e-3, 2e-3),  # activations may be rounded to the format of the weights
        "f16-as-int16": Tolerance(1e-2, 2e-3),  # as in `linear`
        "bf16": Tolerance(3e-2, 2e-2),
        "float8": Tolerance(1e-4, 2e-5),
        "float8-on-tensor-cores": Tolerance(3e-2, 1e-2),  # see `linear`: measured, 1.6e-2
        # the operands of three products have errors of up to 2^-4 each; y, of size 2, then has an
        # error of 4.5 %, for some tokens four times as much
        "float8-rounded": Tolerance(1.0, 0.0),
        # operands of the second product may be rounded to a neighbouring integer
        "integer": Tolerance(2e-2, 1e-3),
        "mixed": Tolerance(2e-2, 2e-3),
    },
    cost=_cost,
    order=("triton", "native", "reference"),
    alone=lambda inputs, index: {
        **inputs,
        **{name: inputs[name][index : index + 1] for name in ("x", "chosen", "shares")},
    },
)
