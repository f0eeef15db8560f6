"""If the kernels say that an ISA may serve in place of another one, its bits are the same: the ISA
of a range of rows changes no row, whatever the rest of the batch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from decoder_step import DECODE, LONG, MIXED, ONE, PROMPT, make_model, record, run
from native_isas import ISAS, native

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.isa.instruction_sets import IsaSelection, RowRange
from penstock.kernels.native import NativeOps, Pool
from penstock.kernels.weights import Affine, Experts, Linear, Matrix

WIDTH, COLUMNS = 256, 96
ROWS = [1, 2, 7, 8, 16, 31, 40]
FORMS = ["q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "q8_0", "iq4_xs", "mxfp4", "f32", "f16", "bf16"]
FAST = [isa for isa in ISAS if isa != "scalar"]


def matrix(form: str, rows: int = COLUMNS, width: int = WIDTH) -> Matrix:
    draw = RandomInputs(7)
    if form in ("f32", "f16", "bf16"):
        return draw.dense(rows, width, form)  # type: ignore[arg-type]
    return draw.affine(rows, width, form)


def family(weight: Matrix) -> str:
    return "affine" if isinstance(weight, Affine) else "dense"


def each_range(isas: list[str]) -> tuple[RowRange, ...]:
    """Return the ISAs in turn, each for one more row, and the last one for all others."""
    return (
        *(RowRange(rows, isa) for rows, isa in enumerate(isas[:6], 1)),
        RowRange(None, isas[-1]),
    )


def rows_of(ops: NativeOps, weight: Any) -> list[bytes]:
    x = RandomInputs(1).normal(max(ROWS), WIDTH).numpy()
    return [ops.linear(np.ascontiguousarray(x[:count]), weight).tobytes() for count in ROWS]


@pytest.mark.parametrize("own", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_isa_that_may_serve_products_gives_their_bits(form: str, own: str) -> None:
    weight = matrix(form)
    alone = NativeOps.eager(Pool(2), own)
    packed = alone.pack_linear(Linear((weight,)))
    expected = rows_of(alone, packed)
    for isa in ISAS:
        if not native.KernelSet(own).serves(family(weight), isa, packed):
            continue
        mixed = replace(IsaSelection.all_of(own), linear=(RowRange(None, isa),))
        assert rows_of(NativeOps.eager(Pool(2), mixed), packed) == expected, isa


@pytest.mark.parametrize("own", ISAS)
@pytest.mark.parametrize("form", FORMS)
def test_isa_that_may_not_serve_products_never_does(form: str, own: str) -> None:
    """Whatever the ranges request, all rows have the arithmetic of their own ISA."""
    alone = NativeOps.eager(Pool(2), own)
    packed = alone.pack_linear(Linear((matrix(form),)))
    expected = rows_of(alone, packed)
    for one, other in pairwise([*ISAS, ISAS[0]]):
        mixed = replace(IsaSelection.all_of(own), linear=each_range([one, other]))
        assert rows_of(NativeOps.eager(Pool(2), mixed), packed) == expected


@pytest.mark.parametrize(
    ("form", "own", "isa"),
    [
        ("q4_1", "avx512_bf16", "avx512"),
        ("q4_k", "amx", "avx512"),
        ("bf16", "avx512", "avx512_bf16"),
        ("bf16", "avx512_bf16", "amx"),
        ("q4_1", "emulated_avx512_bf16", "emulated_avx512"),
        ("q4_k", "emulated_amx", "emulated_avx512"),
        ("bf16", "emulated_avx512", "emulated_avx512_bf16"),
        ("bf16", "emulated_avx512_bf16", "emulated_amx"),
    ],
)
def test_isas_of_another_arithmetic_may_not_serve(form: str, own: str, isa: str) -> None:
    if not {own, isa} <= set(ISAS):
        pytest.skip("this machine or build lacks one of them")
    weight = matrix(form)
    packed = [NativeOps.eager(Pool(1), one).pack_linear(Linear((weight,))) for one in (own, isa)]
    assert not native.KernelSet(own).serves(family(weight), isa, packed[0])
    results = [
        rows_of(NativeOps.eager(Pool(1), one), weights)
        for one, weights in zip((own, isa), packed, strict=True)
    ]
    assert results[0] != results[1], "they agree, so they might serve"


@pytest.mark.parametrize("own", FAST)
@pytest.mark.parametrize(("gate", "down"), [("q8_0", "q8_0"), ("q4_k", "bf16"), ("q4_1", "q4_1")])
def test_experts_have_one_arithmetic_too(gate: str, down: str, own: str) -> None:
    count, inner = 3, 64
    weights = Experts(
        tuple(matrix(gate, inner) for _ in range(count)),
        tuple(matrix(gate, inner) for _ in range(count)),
        tuple(matrix(down, WIDTH, inner) for _ in range(count)),
    )
    draw = RandomInputs(2)
    x = draw.normal(max(ROWS), WIDTH).numpy()
    chosen = draw.integers(0, count, max(ROWS), 1).numpy()
    shares = np.ones((max(ROWS), 1), np.float32)

    def results(ops: NativeOps, packed: Any) -> list[bytes]:
        return [ops.experts(x[:n], chosen[:n], shares[:n], packed).tobytes() for n in ROWS]

    alone = NativeOps.eager(Pool(2), own)
    packed = alone.pack_experts(weights)
    expected = results(alone, packed)
    for isa in FAST:
        mixed = replace(IsaSelection.all_of(own), experts=each_range([isa, own]))
        assert results(NativeOps.eager(Pool(2), mixed), packed) == expected, isa


@pytest.mark.parametrize("own", FAST)
def test_a_plan_of_several_isas_gives_the_bits_of_one(own: str) -> None:
    """Each kind may have the arithmetic of another ISA; ranges change nothing."""
    for attention, other in pairwise([*FAST, own]):
        plain = IsaSelection(own, attention, other)
        mixed = replace(plain, linear=each_range(FAST), experts=each_range(FAST))
        first, second = (record(make_model(2, isas)) for isas in (plain, mixed))
        for inputs in (PROMPT, DECODE, MIXED, ONE, LONG):
            np.testing.assert_array_equal(run(second, inputs), run(first, inputs))


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        ({"linear": [(None, "avx2")]}, "unknown kernel family"),
        ({"affine": [(4, ISAS[0]), (4, ISAS[0])]}, "must ascend"),
        ({"affine": [(None, ISAS[0]), (9, ISAS[0])]}, "must ascend"),
        ({"affine": [(0, ISAS[0])]}, "must ascend"),
        ({"dense": [(n, ISAS[0]) for n in range(1, 12)]}, "too many ranges"),
        ({"dense": [(None, "sse9")]}, "unknown ISA"),
    ],
)
def test_malformed_ranges_are_refused(ranges: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        native.KernelSet(by_rows=ranges)
