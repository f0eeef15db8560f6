"""Every block format converts to the numbers that the `gguf` package reads from it."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from penstock.kernels.weights import Affine, Dense
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.ggml_blocks import CONVERTERS, PIECE_BYTES, convert
from penstock.quant.gguf.ggml_types import SUPPORTED
from penstock.quant.weight_slices import size_bytes, take_rows

QUANTIZED = [name for name in CONVERTERS if name.startswith(("Q", "IQ", "MX"))]
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
    "MXFP4": [],
}
EXPONENTS = np.array([0, 1, 2, 103, 104, 127, 143, 144, 244], np.uint8)  # MXFP4, biased by 127


def blocks_of(name: str, rows: int, blocks: int, fill: str, seed: int = 0) -> np.ndarray:
    """Return raw bytes [rows, blocks * size] with random or extreme quants and finite random
    scales."""
    kind = next(kind for kind in SUPPORTED.values() if kind.name == name)
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
    return raw.reshape(rows, -1)


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
    kind = next(kind for kind in SUPPORTED.values() if kind.name == name)
    raw = blocks_of(name, rows=5, blocks=3, fill=fill)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    matrix = convert(name, raw.reshape(-1), (5, 3 * kind.block))
    assert isinstance(matrix, Affine)
    assert matrix.shape == expected.shape
    # gguf computes in float32: it rounds once, at the sum with the minimum
    np.testing.assert_array_equal(exact(matrix).astype(np.float32), expected)


@pytest.mark.parametrize("name", QUANTIZED)
def test_dequantize_rounds_the_exact_value(name: str) -> None:
    kind = next(kind for kind in SUPPORTED.values() if kind.name == name)
    raw = blocks_of(name, rows=4, blocks=2, fill="random", seed=3)
    matrix = convert(name, raw.reshape(-1), (4, 2 * kind.block))
    assert isinstance(matrix, Affine)
    np.testing.assert_array_equal(dequantize(matrix), exact(matrix).astype(np.float32))


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_tensor_longer_than_a_piece_is_converted_completely(name: str) -> None:
    kind = next(kind for kind in SUPPORTED.values() if kind.name == name)
    blocks = 2 * PIECE_BYTES // kind.block + 1
    raw = blocks_of(name, rows=3, blocks=blocks, fill="random", seed=1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(
        dequantize(convert(name, raw.reshape(-1), (3, blocks * kind.block))), expected
    )


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_float_tensors_are_views_with_the_same_values(name: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 8)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(-1)
    matrix = convert(name, raw, (3, 8))
    assert isinstance(matrix, Dense)
    assert matrix.dtype == name.lower()
    assert np.shares_memory(matrix.data, raw)
    expected = gguf.quants.dequantize(raw.reshape(3, -1), gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(dequantize(matrix), expected)


@pytest.mark.parametrize("name", [*QUANTIZED, "F16"])
def test_rows_taken_in_another_order_are_those_rows(name: str) -> None:
    kind = next(kind for kind in SUPPORTED.values() if kind.name == name)
    rows = np.array([3, 0, 2, 1])
    if name == "F16":
        raw = np.arange(32, dtype="<f2").view(np.uint8).reshape(4, -1)
    else:
        raw = blocks_of(name, rows=4, blocks=2, fill="random")
    columns = raw.shape[1] // kind.size_bytes * kind.block
    matrix = convert(name, raw.reshape(-1).copy(), (4, columns))
    np.testing.assert_array_equal(dequantize(take_rows(matrix, rows)), dequantize(matrix)[rows])


def test_size_counts_every_array() -> None:
    raw = blocks_of("Q4_K", rows=2, blocks=1, fill="random")
    # per row: 128 bytes of quants, 8 + 8 multipliers, two float16
    assert size_bytes(convert("Q4_K", raw.reshape(-1), (2, 256))) == 2 * (128 + 16 + 4)
