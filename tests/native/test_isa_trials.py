"""The trials that choose ISAs: matrices that are stored like the model's, and each arithmetic, by
each ISA that can compute it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from native_isas import ISAS, native

from penstock.kernels.isa.choice import MEASURED_ROWS
from penstock.kernels.isa.instruction_sets import KernelShapes, MatrixForm, form_name
from penstock.kernels.native import Pool
from penstock.kernels.native.isa_trials import candidate_isas, isa_trials
from penstock.kernels.native.pack import matrix_source
from penstock.kernels.random_matrix import random_like
from penstock.kernels.weights import Dense, Matrix
from penstock.quant.gguf.ggml_types import TYPES

HEIGHT, WIDTH = 64, 1024


def pattern(name: str) -> Matrix:
    """Return a pattern as `Checkpoint.pattern` returns it for a GGUF file."""
    return TYPES[name].layout_sample()


def stored(name: str) -> Matrix:
    """Return a matrix of this type with every value that its quants may have."""
    kind = TYPES[name]
    count = HEIGHT * WIDTH // kind.block * kind.size_bytes
    raw = np.random.default_rng(0).integers(0, 256, count, np.uint8)
    if name == "MXFP4":
        raw[:: kind.size_bytes] = 30  # an exponent outside the range of float16 scales
    return kind.converter(raw, (HEIGHT, WIDTH))  # with scales that are not finite


def packed(matrix: Matrix) -> Any:
    kernels, pool = native.KernelSet(candidate_isas()[-1]), native.ThreadPool(1)
    return native.PackedLinear(kernels, pool, [matrix_source(matrix)])


@pytest.mark.parametrize("name", sorted(TYPES.keys() - {"F64", "I32", "I64"}))
def test_random_matrix_is_packed_like_the_models_own(name: str) -> None:
    own, trial = packed(stored(name)), packed(random_like(pattern(name), HEIGHT, WIDTH))
    assert (trial.shape, trial.size_bytes) == (own.shape, own.size_bytes)
    for isa in candidate_isas():
        for family in ("affine", "dense"):
            kernels = native.KernelSet(candidate_isas()[-1])
            assert kernels.serves(family, isa, trial) == kernels.serves(family, isa, own)


@pytest.mark.parametrize("columns", [64, 96, 1056])
@pytest.mark.parametrize("group", [64, 128])
def test_random_matrix_may_have_coarse_groups_and_any_columns(group: int, columns: int) -> None:
    source = pattern("Q4_1")
    assert not isinstance(source, Dense)
    matrix = random_like(replace(source, group=group), 32, columns)  # type: ignore[type-var]
    assert matrix.shape == (32, columns) and packed(matrix).shape == (32, columns)


def shapes(
    forms: list[str],
    cache_dtype: Literal["float16", "float32", "int8"] = "float16",
    reach: Literal["back", "both"] = "back",
) -> KernelShapes:
    return KernelShapes(
        forms=tuple(MatrixForm(pattern(name), 200, 256, 200 * 256 * 10) for name in forms),
        heads=(6, 2, 24),
        cache_dtype=cache_dtype,
        block_size=16,
        inner=96,
        reach=reach,
    )


@pytest.mark.parametrize(
    ("forms", "cache_dtype", "reach"),
    [
        (["Q4_1", "Q8_0"], "float16", "back"),
        (["Q4_K", "Q6_K"], "float32", "back"),
        (["BF16"], "float16", "both"),
        (["F16", "Q4_0"], "float32", "both"),
        (["Q8_0"], "int8", "back"),
    ],
)
def test_every_arithmetic_is_measured_with_its_own_isa(
    forms: list[str], cache_dtype: Any, reach: Any
) -> None:
    isas = [isa for isa in ISAS if isa != "scalar"]
    trials = isa_trials(shapes(forms, cache_dtype, reach), isas, Pool(2))
    cells = [trial.cell for trial in trials]
    assert len(set(cells)) == len(cells)
    for trial in trials:
        trial.run()
    products = {(cell.arithmetic, cell.isa) for cell in cells if cell.kind == "products"}
    assert {(arithmetic, arithmetic) for arithmetic, _ in products} <= products
    assert {isa for _, isa in products} == set(isas)
    for arithmetic, isa in products:
        rows = {
            c.rows for c in cells if (c.kind, c.arithmetic, c.isa) == ("products", arithmetic, isa)
        }
        assert rows == {count for count, _ in MEASURED_ROWS}
    for kind in ("attention", "other"):
        assert isas[-1] in {cell.arithmetic for cell in cells if cell.kind == kind}


def test_formats_have_distinct_names() -> None:
    names = [form_name(pattern(name)) for name in ("Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0", "BF16")]
    assert len(set(names)) == len(names)
