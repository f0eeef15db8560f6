"""Quantized floats stay near their values, and take the bytes that were predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine, Dense, FloatName
from penstock.quant.dequantize import dequantize
from penstock.quant.quantize import GROUP, Bits, quantize_affine
from penstock.quant.quantizing_checkpoint import QuantizingCheckpoint
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quant.weight_slices import size_bytes

Floats = npt.NDArray[np.float32]


def random_values(rows: int, columns: int, size: float = 0.02, seed: int = 0) -> Floats:
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * size).astype(np.float32)


def rounded(values: Floats, bits: Bits) -> tuple[Affine, Floats]:
    """Return the quantized matrix, and the change of each number."""
    affine = quantize_affine(Dense(values, "f32"), bits)
    return affine, dequantize(affine) - values


def split_groups(values: Floats) -> Floats:
    return values.reshape(-1, GROUP)


@pytest.mark.parametrize("size", [1e-30, 1e-9, 3e-4, 0.02, 1.0, 5e3, 1e9])
def test_8_bits_move_no_number_by_more_than_half_a_step(size: float) -> None:
    values = random_values(40, 96, size)
    values[3, :GROUP] *= 1e-6  # a group whose scale float16 rounds, or cannot hold
    affine, moved = rounded(values, 8)
    step = np.abs(split_groups(values)).max(axis=1, keepdims=True) / 127
    most = 0.5001 * step
    if affine.scale.dtype == np.float16:  # rounding the scale moves the 127th level most
        most += 127 * np.maximum(step * 2.0**-11, 2.0**-25)
    assert (np.abs(split_groups(moved)) <= most).all()
    assert (affine.bits, affine.group, affine.minimum, affine.zero_point) == (8, 32, None, 128)
    assert affine.q.min() >= 1 and affine.q.max() <= 255


@pytest.mark.parametrize("size", [1e-30, 3e-4, 0.02, 1.0, 1e9])
def test_4_bit_fit_is_better_than_levels_from_minimum_to_maximum(size: float) -> None:
    values = random_values(64, 160, size)
    affine, moved = rounded(values, 4)
    groups = split_groups(values)
    least = groups.min(axis=1, keepdims=True)
    step = (groups.max(axis=1, keepdims=True) - least) / 15
    plain = least + step * np.rint((groups - least) / step) - groups
    assert np.linalg.norm(moved / size) < 0.98 * np.linalg.norm(plain / size)
    assert (np.abs(split_groups(moved)) <= 1.5 * step).all()
    assert affine.bits == 4 and affine.minimum is not None and affine.q.shape == (64, 80)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("size", "dtype"), [(0.0, "float16"), (0.02, "float16"), (1e-5, "float32"), (1e8, "float32")]
)
def test_scales_are_as_wide_as_needed(bits: Bits, size: float, dtype: str) -> None:
    affine, moved = rounded(random_values(8, 64, size), bits)
    assert affine.scale.dtype == dtype and affine.scale.shape == (8, 2)
    assert affine.minimum is None or affine.minimum.dtype == dtype
    assert np.isfinite(moved).all() and (size or not moved.any())


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_on_levels_are_exact(bits: Bits) -> None:
    """The groups have one distinct number, only zeros, and two numbers."""
    values = np.zeros((3, GROUP), np.float32)
    values[0], values[2, ::2] = -0.75, 127 / 64
    _, moved = rounded(values, bits)
    assert np.abs(moved).max() <= 2.0**-11


@pytest.mark.parametrize("bits", [4, 8])
def test_groups_do_not_depend_on_others(bits: Bits) -> None:
    """The number of rows quantized at a time has no effect."""
    values = random_values(700, 1024)
    whole = quantize_affine(Dense(values, "f32"), bits)
    some = quantize_affine(Dense(values[590:600], "f32"), bits)
    assert np.array_equal(whole.q[590:600], some.q)
    assert np.array_equal(whole.scale[590:600], some.scale)


@pytest.mark.parametrize("bits", [4, 8])
def test_16_bit_floats_are_quantized_by_their_values(bits: Bits) -> None:
    halves = random_values(16, 64).astype(np.float16)
    upper = (random_values(16, 64).view(np.uint32) >> 16).astype(np.uint16)
    pairs: list[tuple[Any, FloatName]] = [(halves, "f16"), (upper, "bf16")]
    for data, name in pairs:
        narrow = Dense(data, name)
        wide = Dense(dequantize(narrow), "f32")
        mine, right = (quantize_affine(matrix, bits) for matrix in (narrow, wide))
        assert np.array_equal(mine.q, right.q) and np.array_equal(mine.scale, right.scale)


@pytest.fixture
def folder(tmp_path: Path) -> SafetensorsFolder:
    tensors = {
        "a.weight": random_values(8, 96).astype(np.float16),
        "odd.weight": random_values(8, 40).astype(np.float16),
        "stack.weight": random_values(12, 64).reshape(3, 4, 64),
        "bad.weight": np.where(np.eye(2, 32) > 0, np.inf, 0).astype(np.float32),
        "norm.weight": np.ones(32, np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return SafetensorsFolder(tmp_path)


def test_only_the_requested_matrices_are_quantized(folder: SafetensorsFolder) -> None:
    names = ("a", "odd", "stack", "norm", "absent")
    checkpoint = QuantizingCheckpoint(folder, {f"{name}.weight": "int8" for name in names})
    assert isinstance(checkpoint.matrix("a.weight"), Affine)
    assert all(isinstance(one, Affine) for one in checkpoint.stack("stack.weight"))
    assert isinstance(checkpoint.matrix("odd.weight"), Dense), "its columns make no whole groups"
    assert isinstance(checkpoint.matrix("bad.weight"), Dense), "nobody asked"
    assert checkpoint.tensors == folder.tensors
    assert np.array_equal(checkpoint.vector("norm.weight"), np.ones(32, np.float32))


@pytest.mark.parametrize("bits", [4, 8])
def test_saved_bytes_are_known_before_reading(folder: SafetensorsFolder, bits: Bits) -> None:
    checkpoint = QuantizingCheckpoint(
        folder, {"a.weight": f"int{bits}", "stack.weight": f"int{bits}"}
    )
    after = size_bytes(checkpoint.matrix("a.weight"))
    after += sum(map(size_bytes, checkpoint.stack("stack.weight")))
    assert checkpoint.saved_bytes == 8 * 96 * 2 + 12 * 64 * 4 - after


def test_a_number_that_is_not_finite_is_refused_by_its_tensor(folder: SafetensorsFolder) -> None:
    checkpoint = QuantizingCheckpoint(folder, {"bad.weight": "int4"})
    with pytest.raises(ModelError, match=r"bad\.weight: not all numbers are finite"):
        checkpoint.matrix("bad.weight")
    nan = np.full((1, 32), np.nan, np.float32)
    for bits in (4, 8):
        with pytest.raises(ValueError, match="finite"):
            quantize_affine(Dense(nan, "f32"), bits)  # type: ignore[arg-type]
