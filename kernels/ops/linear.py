"""The op `linear`: products of activations with float weights, and of int8 activations with affine
integer weights. Weights in 8-bit floats may be multiplied by activations in 8-bit floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.ops.dequantize import dequantize, stored_bytes
from penstock.kernels.registry import Case, Cost, Inputs, Op, Tolerance
from penstock.kernels.weights import Affine, Linear, Matrix

# Number of int8 activations that share a scale, for any group size of the weight.
ACTIVATION_GROUP = 32

# Number of 8-bit float activations that share a scale if the weight has a scale per group of
# columns.
FLOAT8_GROUP = 128


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """A linear layer with dequantized weights.

    `parts`: for each part, its weights [N, C] and whether they were integers.
    `bias`: [sum of N], or None.
    """

    parts: tuple[tuple[torch.Tensor, bool], ...]
    bias: torch.Tensor | None


def pack_linear(weight: Linear, device: str = "cpu", dtype: Any = torch.float32) -> ReferenceLinear:
    """Return the layer with every part dequantized to `dtype`."""
    parts = tuple(
        (dequantize(part, dtype).to(device), isinstance(part, Affine)) for part in weight.parts
    )
    bias = None if weight.bias is None else torch.from_numpy(weight.bias).to(device, dtype)
    return ReferenceLinear(parts, bias)


def quantized(x: torch.Tensor) -> torch.Tensor:
    """Return x [T, C] rounded to the values that int8 activations represent.

    Each row and group of 32 has integers, x * (127 / absmax) rounded half to even, and a scale,
    which fits these integers to x by least squares.
    """
    grouped: torch.Tensor = x.unflatten(-1, (-1, ACTIVATION_GROUP))
    step = grouped.abs().amax(dim=-1, keepdim=True) / 127
    quanta = torch.round(grouped / torch.where(step > 0, step, 1))
    squares = (quanta * quanta).sum(dim=-1, keepdim=True)
    scale = (grouped * quanta).sum(dim=-1, keepdim=True) / torch.where(squares > 0, squares, 1)
    return (quanta * scale).flatten(-2)


def linear(x: torch.Tensor, weight: ReferenceLinear) -> torch.Tensor:
    """Return x @ w.T + bias: [T, C] -> [T, N].

    Integer parts are multiplied by x quantized to int8. Parts in 8-bit floats may be multiplied by
    x rounded to 8-bit floats, half to even, with the scale absmax / 448. This scale is computed per
    row of x or, if the weight has scales per group of columns, per group of a row.

    Kernels compute the sum of each group exactly and add the groups in order. This affects only
    rounding, which does not show in float64.
    """
    columns = [(quantized(x) if integer else x) @ part.T for part, integer in weight.parts]
    y = torch.cat(columns, dim=-1)
    return y if weight.bias is None else y + weight.bias


# Rows and columns that share a scale; 0: all of them.
_FLOAT8_BLOCKS = {"f8_row": (1, 0), "f8_all": (0, 0), "f8_tile": (128, 128), "f8_group": (1, 128)}


def _matrix(source: RandomInputs, rows: int, width: int, like: str) -> Matrix:
    like = like.removesuffix("_rounded")
    if like in ("f32", "f16", "bf16"):
        return source.dense(rows, width, like)  # type: ignore[arg-type]
    if like in _FLOAT8_BLOCKS:
        height, columns = _FLOAT8_BLOCKS[like]
        return source.float8(rows, width, (height or rows, columns or width))
    return source.affine(rows, width, like)


def _inputs(
    like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str = ""
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes the inputs of a case. `like`: one format for all parts, or one
    per part, separated by '+'."""

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        formats = like.split("+") * (len(rows) if "+" not in like else 1)
        parts = tuple(
            _matrix(source, n, width, form) for n, form in zip(rows, formats, strict=True)
        )
        offset = source.normal(sum(rows)).numpy() if bias else None
        weight = Linear(parts, offset, "f16" if "f16_rounded" in formats else "none")
        return {"x": source.quantizable(tokens, width), "weight": weight}

    return make_inputs


def _float8_inputs(
    like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str = "", rounded: str = ""
) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes inputs with 8-bit float weights. The activations are numbers
    that 8-bit floats represent exactly or, with `rounded`, any numbers."""

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        parts = tuple(_matrix(source, n, width, like) for n in rows)
        group = _FLOAT8_BLOCKS[like][1] or width
        x = source.normal(tokens, width) if rounded else source.representable(tokens, width, group)
        offset = source.normal(sum(rows)).numpy() if bias else None
        return {"x": x, "weight": Linear(parts, offset)}

    return make_inputs


def _float8_nan_inputs(like: str, tokens: int, width: int) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes inputs with one NaN activation: only its row of results must be
    NaN."""
    inputs_of = _float8_inputs(like, tokens, width, (40,))

    def make_inputs(seed: int) -> dict[str, Any]:
        inputs = inputs_of(seed)
        inputs["x"][1, width // 2] = float("nan")
        return inputs

    return make_inputs


def _tied_inputs(tokens: int, width: int, rows: int) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes activations exactly halfway between two quanta: only rounding
    half to even gives the right result."""

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        quanta = source.integers(-126, 126, tokens, width).float() + 0.5
        quanta[:, ::ACTIVATION_GROUP] = 127.0
        weight = Linear((source.affine(rows, width, "q8_0"),))
        return {"x": quanta / 64, "weight": weight}

    return make_inputs


def _nan_inputs(tokens: int, width: int, rows: int) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes inputs with one NaN activation: only its row of results must be
    NaN."""

    def make_inputs(seed: int) -> dict[str, Any]:
        source = RandomInputs(seed)
        x = source.quantizable(tokens, width)
        x[1, width // 2] = float("nan")
        return {"x": x, "weight": Linear((source.affine(rows, width, "q4_1"),))}

    return make_inputs


# 4-bit formats whose scales are not two-level. Some ISAs round these scales.
_NIBBLES = {"q4_0", "q4_1", "int4_g128", "int4_g96_minima"}


def _kind(like: str) -> str:
    """Return the kind of a case whose parts have the formats `like`. The kind selects the loosest
    tolerance of these formats."""
    formats = like.split("+")
    integer = "nibbles" if set(formats) <= _NIBBLES else "integer"
    floats = {name.removesuffix("_rounded") for name in formats}
    return next((kind for kind in ("bf16", "f16", "f32") if kind in floats), integer)


def _case(like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str = "") -> Case:
    shape = "+".join(map(str, rows))
    name = f"{like}-T{tokens}-C{width}-N{shape}{'-' + bias if bias else ''}"
    return Case(name, _kind(like), _inputs(like, tokens, width, rows, bias))


def _float8_case(
    like: str, tokens: int, width: int, rows: tuple[int, ...], bias: str = "", rounded: str = ""
) -> Case:
    extras = "".join(f"-{word}" for word in (bias, rounded) if word)
    name = f"{like}-T{tokens}-C{width}-N{'+'.join(map(str, rows))}{extras}"
    make_inputs = _float8_inputs(like, tokens, width, rows, bias, rounded)
    return Case(name, "float8-rounded" if rounded else "float8", make_inputs)


def _cost(inputs: Inputs) -> Cost:
    tokens, width = inputs["x"].shape
    rows, _ = inputs["weight"].shape
    weights = sum(stored_bytes(part) for part in inputs["weight"].parts)
    return Cost(weights + 4 * tokens * (width + rows), 2 * tokens * width * rows)


def _benchmarks() -> tuple[Case, ...]:
    shapes = {
        "smollm2-qkv": (576, (576, 192, 192)),
        "smollm2-gate-up": (576, (1536, 1536)),
        "smollm2-down": (1536, (576,)),
        "smollm2-head": (576, (49152,)),
        "qwen1.5b-gate-up": (1536, (8960, 8960)),
        "qwen1.5b-down": (8960, (1536,)),
    }
    return tuple(
        Case(f"{model}-{like}-T{tokens}", _kind(like), _inputs(like, tokens, width, rows))
        for model, (width, rows) in shapes.items()
        for like in ("q4_1", "q8_0", "bf16")
        for tokens in ((1, 16) if model.endswith("head") else (1, 16, 512))
    )


LINEAR = Op(
    name="linear",
    signature="x float [T, C]; weight packed [N, C]; write out float [T, N]",
    reference=linear,
    pack=pack_linear,
    cases=(
        _case("f32", 1, 32, (1,)),
        _case("f32", 5, 96, (24, 8, 8), "bias"),
        _case("f32", 33, 576, (50,)),
        _case("f16", 3, 64, (40,)),
        _case("f16", 17, 576, (64, 64), "bias"),
        _case("f16_rounded", 1, 32, (40,)),
        _case("f16_rounded", 7, 96, (70,), "bias"),
        _case("f16_rounded", 64, 1056, (24, 8, 16), "bias"),
        _case("f16_rounded+bf16+q8_0", 20, 192, (40, 24, 16), "bias"),
        _case("bf16", 1, 576, (30,)),
        _case("bf16", 12, 64, (48,)),
        _case("bf16", 18, 64, (48,)),
        _case("bf16", 33, 2080, (20,)),
        _case("bf16", 64, 1056, (48,), "bias"),
        _case("bf16", 33, 2112, (150,)),
        _case("bf16", 64, 1088, (48,), "bias"),
        _case("bf16", 100, 1024, (140,)),
        _case("q4_0", 1, 64, (16,)),
        _case("q4_0", 19, 576, (70,)),
        _case("q4_1", 4, 576, (24, 8, 8), "bias"),
        _case("q4_1", 65, 64, (33,)),
        _case("q5_0", 2, 96, (20,)),
        _case("q5_1", 16, 64, (17,)),
        _case("q8_0", 1, 576, (64,), "bias"),
        _case("q8_0", 34, 32, (31,)),
        _case("q2_k", 3, 512, (48,)),
        _case("q2_k", 20, 288, (24,)),
        _case("q3_k", 1, 512, (40,)),
        _case("q3_k", 18, 288, (24,)),
        _case("q4_k", 3, 512, (48,)),
        _case("q5_k", 1, 256, (32,)),
        _case("q6_k", 5, 512, (40,)),
        _case("q6_k", 1, 288, (24,)),
        _case("iq4_nl", 3, 96, (40,)),
        _case("iq4_xs", 20, 256, (40,), "bias"),
        _case("mxfp4", 3, 96, (40,)),
        _case("mxfp4", 20, 64, (33,), "bias"),
        _case("nvfp4", 3, 96, (40,)),
        _case("nvfp4", 20, 288, (24,), "bias"),
        _case("iq1_m", 3, 256, (40,)),
        _case("iq2_xxs", 20, 256, (33,), "bias"),
        _case("iq2_xs", 3, 512, (40,)),
        _case("iq2_tiny", 20, 288, (33,)),
        _case("iq3_s", 18, 256, (24,)),
        _case("int4_zero_1", 5, 256, (40,)),
        _case("int4_g128", 3, 288, (40,)),
        _case("int4_g96_minima", 20, 320, (24,)),
        _case("int8_rows", 5, 160, (33,), "bias"),
        _case("q4_k+q6_k+f16", 6, 256, (32, 16, 16), "bias"),
        _float8_case("f8_row", 3, 256, (40,)),
        _float8_case("f8_row", 40, 256, (24, 8, 8), "bias"),
        _float8_case("f8_row", 5, 200, (33,)),
        _float8_case("f8_all", 1, 128, (70,), "bias"),
        _float8_case("f8_all", 20, 384, (48, 16, 16)),
        _float8_case("f8_tile", 1, 384, (200,)),
        _float8_case("f8_tile", 16, 256, (128, 128), "bias"),
        _float8_case("f8_tile", 70, 256, (128, 256)),
        _float8_case("f8_tile", 33, 256, (200, 56), "bias"),
        _float8_case("f8_tile", 33, 1152, (200, 56), "bias"),
        _float8_case("f8_tile", 18, 200, (130,)),
        _float8_case("f8_group", 2, 256, (40, 8)),
        _float8_case("f8_group", 17, 256, (40, 8)),
        _float8_case("f8_row", 24, 512, (64,), "", "rounded"),
        _float8_case("f8_tile", 24, 512, (130,), "", "rounded"),
        Case("f8_tile-nan", "float8", _float8_nan_inputs("f8_tile", 18, 256)),
        Case("f8_row-nan", "float8", _float8_nan_inputs("f8_row", 18, 256)),
        Case("f8_row-nan-few", "float8", _float8_nan_inputs("f8_row", 3, 256)),
        Case("q8_0-half-way", "integer", _tied_inputs(3, 64, 12)),
        Case("q4_1-nan", "nibbles", _nan_inputs(4, 96, 12)),
    ),
    benchmarks=_benchmarks(),
    tolerance={
        "f32": Tolerance(2e-5, 1e-5),
        "f16": Tolerance(3e-3, 1e-3),  # x may be rounded to the format of the weights
        # x is rounded to 1/4095 of the largest of 64, which is up to 3: each term of a sum of 576
        # is off by 2e-4.
        "f16-as-int16": Tolerance(1e-2, 1e-3),
        "bf16": Tolerance(3e-2, 1e-2),
        "integer": Tolerance(1e-4, 1e-5),
        # Minima, and the sums that minima multiply, have 16 bits each. If these products, of size
        # 30, cancel with other products, their relative error of 2^-16 remains.
        "integer-by-tiles": Tolerance(5e-4, 1e-5),
        "nibbles": Tolerance(1e-4, 1e-5),
        "nibbles-by-tiles": Tolerance(5e-4, 1e-5),
        # Scales are rounded to multiples of 2^-14 of the largest scale in a row: y, of size 14, has
        # an error of up to 2e-3.
        "nibbles-in-bf16": Tolerance(3e-3, 1e-5),
        "float8": Tolerance(1e-4, 1e-5),
        # Tensor cores of compute capability 9.0 align the terms of a sum of 8-bit floats to the
        # largest term and keep 14 bits. Sums of size 3 have terms of size 10; errors of up to
        # 4.5e-3 were measured.
        "float8-on-tensor-cores": Tolerance(1e-2, 1e-2),
        "float8-rounded": Tolerance(0.3, 0.0),  # errors: x up to 2^-4, y (of size 3) 2.6 %
    },
    cost=_cost,
    order=("cuda", "triton", "native", "reference"),
    native_kernels=("quantize_rows", "linear_affine", "linear_dense"),
    alone=lambda inputs, index: {**inputs, "x": inputs["x"][index : index + 1]},
)
