"""Every block format converts to the numbers that the `gguf` package reads from it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from penstock.kernels.weights import Affine, Dense
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.block_arrays import PIECE_BYTES
from penstock.quant.gguf.ggml_types import SUPPORTED, TYPES, type_name
from penstock.quant.weight_slices import size_bytes, take_rows

SCALE_BYTES = {  # the offsets of float16 scales in a block
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "Q8_K": [],
    "IQ1_S": [0],
    "IQ1_M": [],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "Q1_0": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "MXFP4": [],
    "NVFP4": [],
}
NUMBERS = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
QUANTIZED = [name for name in TYPES if name not in NUMBERS]
EXPONENTS = np.array([0, 1, 2, 103, 104, 127, 143, 144, 244], np.uint8)  # MXFP4, biased by 127


def blocks_of(name: str, rows: int, blocks: int, fill: str, seed: int = 0) -> np.ndarray:
    """Return raw bytes [rows, blocks * size] with random or extreme quants and finite random
    scales."""
    kind = TYPES[name]
    rng = np.random.default_rng(seed)
    shape = (rows, blocks, kind.size_bytes)
    if fill == "random":
        raw = rng.integers(0, 256, shape, dtype=np.uint8)
    elif fill == "extremes":
        raw = rng.choice(np.array([0x00, 0x7F, 0x80, 0x0F, 0xF0, 0xFF], np.uint8), shape)
    else:
        raw = np.full(shape, int(fill, 16), np.uint8)
    for offset in SCALE_BYTES[name]:
        scales = rng.normal(0, 10.0 ** rng.integers(-6, 4, (rows, blocks))).clip(-6e4, 6e4)
        raw[:, :, offset : offset + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    if name == "MXFP4":
        raw[:, :, 0] = rng.choice(EXPONENTS, (rows, blocks))
    if name == "Q8_K":
        raw[:, :, :4] = rng.normal(0, 3, (rows, blocks, 1)).astype("<f4").view(np.uint8)
    if name == "IQ1_M":  # the last nibble of the scale: the highest bits of a float16
        raw[:, :, 55] &= 0xBF
    return raw.reshape(rows, -1)


def reference(name: str, raw: np.ndarray) -> np.ndarray:
    """Return the float32 values of blocks [rows, bytes]: those of the `gguf` package, or of the
    definition for the types that the package does not decode."""
    if name == "Q8_K":
        blocks = raw.reshape(-1, 292)
        quants = blocks[:, 4:260].view(np.int8).astype(np.float32)
        return (blocks[:, :4].copy().view("<f4") * quants).reshape(len(raw), -1)
    if name == "Q1_0":
        blocks = raw.reshape(-1, 18)
        bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32)
        return (blocks[:, :2].copy().view("<f2") * (2 * bits - 1)).reshape(len(raw), -1)
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])


def exact(matrix: Affine) -> np.ndarray:
    """Return the documented meaning of Affine in float64, in which every step is exact."""
    rows, columns = matrix.shape
    q = matrix.q.astype(np.float64)
    if matrix.bits == 4:
        q = np.stack([matrix.q & 15, matrix.q >> 4], axis=-1).astype(np.float64)
    q = q.reshape(rows, -1, matrix.group)
    groups = np.arange(columns // matrix.group) * matrix.group // 256
    scale = matrix.scale.astype(np.float64)
    if matrix.super_scale is not None:
        scale = scale * matrix.super_scale.astype(np.float64)[:, groups]
    if matrix.minimum is None:
        minimum = -matrix.zero_point * scale
    else:
        minimum = matrix.minimum.astype(np.float64)
        if matrix.super_minimum is not None:
            minimum = minimum * matrix.super_minimum.astype(np.float64)[:, groups]
    return (q * scale[..., None] + minimum[..., None]).reshape(rows, columns)


@pytest.mark.parametrize("fill", ["random", "extremes", "00", "ff", "80", "7f"])
@pytest.mark.parametrize("name", QUANTIZED)
def test_blocks_have_the_values_of_the_gguf_package(name: str, fill: str) -> None:
    kind = TYPES[name]
    raw = blocks_of(name, rows=5, blocks=3, fill=fill)
    expected = reference(name, raw)
    matrix = TYPES[name].convert(raw.reshape(-1), (5, 3 * kind.block))
    assert isinstance(matrix, Affine)
    assert matrix.shape == expected.shape
    # gguf computes in float32: it rounds once, at the sum with the minimum
    np.testing.assert_array_equal(exact(matrix).astype(np.float32), expected)


@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantize_rounds_the_exact_value(name: str) -> None:
    kind = TYPES[name]
    raw = blocks_of(name, rows=4, blocks=2, fill="random", seed=3)
    matrix = TYPES[name].convert(raw.reshape(-1), (4, 2 * kind.block))
    assert isinstance(matrix, Affine)
    np.testing.assert_array_equal(dequantize(matrix), exact(matrix).astype(np.float32))


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_tensor_longer_than_a_piece_is_converted_completely(name: str) -> None:
    kind = TYPES[name]
    blocks = 2 * PIECE_BYTES // kind.block + 1
    raw = blocks_of(name, rows=3, blocks=blocks, fill="random", seed=1)
    expected = reference(name, raw)
    np.testing.assert_array_equal(
        dequantize(TYPES[name].convert(raw.reshape(-1), (3, blocks * kind.block))), expected
    )


def test_every_type_of_the_gguf_package_is_known_with_its_size() -> None:
    for kind in gguf.GGMLQuantizationType:
        if kind.name == "Q8_1":  # holds activations; GGML's block differs from the package's
            assert type_name(kind) == "Q8_1" and kind not in SUPPORTED
            continue
        assert SUPPORTED[kind].name == kind.name
        assert (SUPPORTED[kind].block, SUPPORTED[kind].size_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_scale_that_is_not_finite_is_refused(name: str, value: float) -> None:
    raw = blocks_of(name, rows=2, blocks=2, fill="random")
    kind = TYPES[name]
    if name == "NVFP4":
        pytest.skip("its scales have no code for infinity, and GGML reads NaN as 0")
    last = raw.reshape(2, 2, -1)[1, 1]
    half = np.array([value], "<f2").view(np.uint8)
    if name == "MXFP4":
        last[0] = 255
    elif name == "Q8_K":
        last[:4] = np.array([value], "<f4").view(np.uint8)
    elif name == "IQ1_M":
        nibbles = int(half.view("<u2")[0])
        for at in range(4):
            high = nibbles >> 4 * at & 15
            last[49 + 2 * at] = last[49 + 2 * at] & 15 | high << 4
    else:
        last[SCALE_BYTES[name][-1] :][:2] = half
    with pytest.raises(ValueError, match=r"infinite|NaN"):
        kind.convert(raw.reshape(-1), (2, 2 * kind.block))


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_layout_sample_has_the_size_of_a_matrix(name: str) -> None:
    kind = TYPES[name]
    raw = blocks_of(name, rows=3, blocks=2, fill="random")
    matrix, sample = kind.convert(raw.reshape(-1), (3, 2 * kind.block)), kind.layout_sample()
    assert isinstance(matrix, Affine) and isinstance(sample, Affine)
    assert (matrix.bits, matrix.group, matrix.zero_point) == (
        sample.bits,
        sample.group,
        sample.zero_point,
    )
    assert size_bytes(matrix) <= 3 * 2 * size_bytes(sample)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F64", "<f8"), ("I8", "i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8")],
)
def test_other_numbers_become_float32(name: str, dtype: str) -> None:
    values = np.array([[0, -1, 100, -128]], dtype)
    matrix = TYPES[name].convert(values.view(np.uint8).reshape(-1), (1, 4))
    np.testing.assert_array_equal(dequantize(matrix), values.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [("F64", "<f8", 1e300), ("I32", "<i4", 2**25 + 1), ("I64", "<i8", 2**60)],
)
def test_numbers_that_float32_cannot_hold_are_refused(name: str, dtype: str, value: float) -> None:
    raw = np.array([value], dtype).view(np.uint8)
    with pytest.raises(ValueError, match=r"float32|beyond 2\^24"):
        TYPES[name].convert(raw, (1, 1))


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_tensors_are_views_with_the_same_values(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 8)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(-1)
    matrix = TYPES[name].convert(raw, (3, 8))
    assert isinstance(matrix, Dense)
    assert matrix.dtype == name.lower()
    assert np.shares_memory(matrix.data, raw)
    expected = gguf.quants.dequantize(raw.reshape(3, -1), gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(dequantize(matrix), expected)


@pytest.mark.parametrize("name", [*QUANTIZED, "F16"])
def test_rows_taken_in_another_order_are_those_rows(name: str) -> None:
    kind = TYPES[name]
    rows = np.array([3, 0, 2, 1])
    if name == "F16":
        raw = np.arange(32, dtype="<f2").view(np.uint8).reshape(4, -1)
    else:
        raw = blocks_of(name, rows=4, blocks=2, fill="random")
    columns = raw.shape[1] // kind.size_bytes * kind.block
    matrix = TYPES[name].convert(raw.reshape(-1).copy(), (4, columns))
    np.testing.assert_array_equal(dequantize(take_rows(matrix, rows)), dequantize(matrix)[rows])


def test_size_counts_every_array() -> None:
    raw = blocks_of("Q4_K", rows=2, blocks=1, fill="random")
    # per row: 128 bytes of quants, 8 + 8 multipliers, two float16
    assert size_bytes(TYPES["Q4_K"].convert(raw.reshape(-1), (2, 256))) == 2 * (128 + 16 + 4)
