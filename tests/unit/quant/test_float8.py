"""8-bit floats are widened to the values that torch reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from penstock.kernels.weights import Float8
from penstock.quant.dequantize import dequantize
from penstock.quant.float8 import E4M3, float8_to_bfloat16
from penstock.quant.weight_slices import size_bytes, take_rows

BLOCKS = [(1, 300), (200, 300), (128, 128), (1, 128)]


def matrix(block: tuple[int, int], scale: np.ndarray | None = None) -> Float8:
    random = np.random.default_rng(0)
    codes = random.integers(0, 256, (200, 300), dtype=np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    grid = tuple(-(-size // step) for size, step in zip(codes.shape, block, strict=True))
    scale = random.uniform(0.001, 0.1, grid) if scale is None else scale
    return Float8(codes, scale.astype(np.float32), block)


def truth(weight: Float8) -> torch.Tensor:
    """Return the values according to torch, element by element."""
    height, width = weight.block
    row, column = np.indices(weight.shape)
    scale = torch.from_numpy(weight.scale[row // height, column // width])
    return torch.from_numpy(weight.codes).view(torch.float8_e4m3fn).float() * scale


def test_codes_have_the_values_of_torch() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(E4M3, codes.float().numpy())


@pytest.mark.parametrize("block", BLOCKS)
def test_float32_is_the_rounded_product(block: tuple[int, int]) -> None:
    weight = matrix(block)
    np.testing.assert_array_equal(dequantize(weight), truth(weight).numpy())


@pytest.mark.parametrize("block", BLOCKS)
def test_bfloat16_is_the_product_rounded_to_even(block: tuple[int, int]) -> None:
    weight = matrix(block)
    expected = truth(weight).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(float8_to_bfloat16(weight).data, expected)


def test_bfloat16_is_exact_if_scales_are_powers_of_two() -> None:
    weight = matrix((128, 128), np.array([[0.5, 2.0**-9, 4.0], [2.0**-20, 1.0, 0.25]]))
    np.testing.assert_array_equal(dequantize(float8_to_bfloat16(weight)), truth(weight).numpy())


@pytest.mark.parametrize("block", BLOCKS)
def test_taken_rows_keep_their_scales(block: tuple[int, int]) -> None:
    weight = matrix(block)
    order = np.random.default_rng(1).permutation(200)[:70]
    np.testing.assert_array_equal(dequantize(take_rows(weight, order)), dequantize(weight)[order])


def test_size_counts_codes_and_scales() -> None:
    assert size_bytes(matrix((128, 128))) == 200 * 300 + 4 * 2 * 3
