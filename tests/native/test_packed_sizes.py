"""Packed weights are about as large as their file: decoding waits for memory."""

from __future__ import annotations

import numpy as np
import pytest
from native_isas import ISAS, native

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.native.pack import matrix_source
from penstock.kernels.weights import Affine
from penstock.quant.gguf.ggml_types import TYPES

ROWS, COLUMNS = 64, 1024
BITS = {  # per weight: quants, and the scales and minima that they share
    "Q2_K": 4 + 8 / 16 + 8 / 16 + 16 / 256 + 16 / 256,
    "Q3_K": 4 + 8 / 16 + 16 / 256,
    "Q4_0": 4 + 16 / 32,
    "Q4_1": 4 + 16 / 32 + 16 / 32,
    "Q4_K": 4 + 8 / 32 + 8 / 32 + 16 / 256 + 16 / 256,
    "Q5_0": 6 + 16 / 32,
    "Q6_K": 6 + 8 / 16 + 16 / 256,
    "Q8_0": 8 + 16 / 32,
    "IQ4_NL": 4 + 16 / 32,
    "IQ4_XS": 4 + 8 / 32 + 16 / 256,
    "MXFP4": 4 + 16 / 32,
    "NVFP4": 4 + 16 / 16,
    "Q1_0": 4 + 16 / 32,
    "TQ1_0": 4 + 16 / 32,
    "TQ2_0": 4 + 16 / 32,
    "IQ1_S": 4 + 32 / 32,
    "IQ1_M": 4 + 32 / 16,
    "IQ2_XXS": 4 + 32 / 32,
    "IQ2_XS": 4 + 32 / 16,
    "IQ2_S": 4 + 32 / 16,
    "IQ3_XXS": 4 + 32 / 32,
    "IQ3_S": 4 + 8 / 32 + 16 / 256,
}


def packed_bits(matrix: Affine, isa: str) -> float:
    kernels, pool = native.KernelSet(isa), native.ThreadPool(1)
    packed = native.PackedLinear(kernels, pool, [matrix_source(matrix)])
    return 8 * packed.size_bytes / (ROWS * COLUMNS)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", BITS)
def test_bits_of_a_weight(name: str, isa: str) -> None:
    kind = TYPES[name]
    count = ROWS * COLUMNS // kind.block * kind.size_bytes
    raw = np.random.default_rng(0).integers(0, 0x78, count, np.uint8)  # finite in every type
    if name == "MXFP4":
        raw[:: kind.size_bytes] = 120  # an exponent inside the range of float16 scales
    matrix = kind.convert(raw, (ROWS, COLUMNS))
    assert isinstance(matrix, Affine)
    assert packed_bits(matrix, isa) == pytest.approx(BITS[name], rel=0.01)
    assert BITS[name] <= kind.held_bits("cpu") <= BITS[name] + (0.5 if name == "MXFP4" else 0)


@pytest.mark.parametrize("form", ["iq4_nl", "iq4_xs", "mxfp4", "nvfp4"])
def test_more_than_16_values_are_kept(form: str) -> None:
    matrix = RandomInputs(0).affine(ROWS, COLUMNS, form)
    narrow = packed_bits(matrix, ISAS[0])
    matrix.q[-1, -2:] = 2, 3
    assert packed_bits(matrix, ISAS[0]) > narrow + 1.5


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"])
def test_scales_of_normal_size_are_multipliers(name: str) -> None:
    kind = TYPES[name]
    raw = np.random.default_rng(0).integers(0, 256, (ROWS * COLUMNS // 256, kind.size_bytes))
    raw = raw.astype(np.uint8)
    raw[:, 1] = 0x20  # d is at least 2^-7; in every type it is the first field
    matrix = kind.convert(raw.reshape(-1), (ROWS, COLUMNS))
    assert isinstance(matrix, Affine)
    groups = 8 / matrix.group + 16 / 256
    assert packed_bits(matrix, ISAS[0]) == pytest.approx(4 + groups, rel=0.01)
