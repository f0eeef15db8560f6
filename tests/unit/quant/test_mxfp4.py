"""The storage type of MXFP4 scales, and the scales that are refused."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.kernels.weights import FLOAT4_VALUES, FLOAT4_ZERO
from penstock.quant.dequantize import dequantize
from penstock.quant.gguf.gguf_file import GgufFile
from penstock.quant.mxfp4 import look_up_pairs, mxfp4_layout_sample, mxfp4_matrix


def matrix_of(exponents: list[int], zeros: tuple[int, ...] = ()):
    """Return a row of groups with all 16 codes twice; the groups `zeros` are all zeros."""
    q = np.tile(FLOAT4_VALUES, (len(exponents), 2))
    q[list(zeros)] = FLOAT4_ZERO
    return mxfp4_matrix(q.reshape(1, -1), np.array([exponents], np.uint8))


@pytest.mark.parametrize(
    ("exponents", "dtype"),
    [
        ([104, 143], np.float16),  # 2^-24 and 2^15, halved
        ([103, 120], np.float32),
        ([144, 120], np.float32),
        ([0, 244], np.float32),
    ],
)
def test_scales_of_mxfp4_are_float16_if_that_is_exact(exponents: list[int], dtype: type) -> None:
    matrix = matrix_of(exponents)
    assert matrix.scale.dtype == dtype
    assert matrix.scale.astype(np.float64).tolist() == [[2.0 ** (e - 128) for e in exponents]]


def test_a_group_of_zeros_may_have_any_scale() -> None:
    """Quantizers give it the smallest scale, which float16 cannot hold."""
    matrix = matrix_of([120, 0, 121], zeros=(1,))
    assert matrix.scale.dtype == np.float16
    assert dequantize(matrix)[0, 32:64].tolist() == [0.0] * 32


def test_values_are_those_of_the_specification() -> None:
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    expected = [*values, *(-value for value in values)]
    assert dequantize(matrix_of([127]))[0, :16].tolist() == expected


def test_the_low_code_of_a_byte_comes_first() -> None:
    codes = np.array([[0x21, 0xF0]], np.uint8)
    expected = FLOAT4_VALUES[[1, 2, 0, 15]].tolist()
    assert look_up_pairs(codes).tolist() == [expected]


@pytest.mark.parametrize(("exponent", "meaning"), [(255, "NaN"), (245, r"2\^118")])
def test_invalid_and_too_large_exponents_are_refused_by_name(
    tmp_path: Path, exponent: int, meaning: str
) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    raw = np.full((2, 4, 17), 120, np.uint8)
    raw[1, 2, 0] = exponent
    writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match=f"m.gguf: t: a scale of MXFP4 is {meaning}"):
        GgufFile(path).stack("t")


def test_matrices_of_a_stack_have_scales_of_one_type(tmp_path: Path) -> None:
    """They are one tensor on a GPU."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "gpt-oss")
    raw = np.full((2, 4, 17), 120, np.uint8)
    raw[1, 2, 0] = 3
    writer.add_tensor("t", raw, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert [one.scale.dtype for one in GgufFile(path).stack("t")] == [np.float32, np.float32]


def test_the_layout_sample_has_the_largest_form_and_is_zero() -> None:
    pattern = mxfp4_layout_sample()
    assert pattern.scale.dtype == np.float32
    assert not dequantize(pattern).any()
