"""Rows and columns of a weight have exactly the numbers of the whole weight there."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Float8, Matrix
from penstock.quant.dequantize import dequantize, fold_super_scales
from penstock.quant.weight_slices import (
    column_step,
    pad_rows,
    row_range,
    scaled,
    size_bytes,
    take_column_blocks,
    take_columns,
    take_rows,
)

COARSE = ("int4_g128", "int4_g96_minima", "int8_rows")
OF_GGUF = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs")
AFFINE = (*OF_GGUF, *COARSE)
FLOAT8 = {"f8_row": (1, 640), "f8_all": (200, 640), "f8_tile": (128, 128), "f8_group": (1, 128)}
FORMS = ("f32", "f16", "bf16", *AFFINE, *FLOAT8)
ROWS, COLUMNS = 200, 640  # neither fills whole tiles; the columns do not fill whole super groups


def random_matrix(form: str) -> Matrix:
    source = RandomInputs(1)
    if form in FLOAT8:
        return source.float8(ROWS, COLUMNS, FLOAT8[form])
    if form in AFFINE:
        return source.affine(ROWS, COLUMNS, form)
    return source.dense(ROWS, COLUMNS, form)  # type: ignore[arg-type]


def assert_same(found: Matrix, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_array_equal(dequantize(found), expected)


@pytest.mark.parametrize("form", FORMS)
def test_rows_in_another_order(form: str) -> None:
    matrix = random_matrix(form)
    order = np.random.default_rng(0).permutation(ROWS)[:70]
    assert_same(take_rows(matrix, order), dequantize(matrix)[order])


@pytest.mark.parametrize("rows", [(0, 128), (128, 200), (0, 200), (40, 90), (90, 160)])
@pytest.mark.parametrize("form", FORMS)
def test_neighbouring_rows(form: str, rows: tuple[int, int]) -> None:
    matrix = random_matrix(form)
    assert_same(row_range(matrix, slice(*rows)), dequantize(matrix)[slice(*rows)])


def test_neighbouring_rows_of_a_tile_keep_its_scale() -> None:
    tiles = random_matrix("f8_tile")
    assert isinstance(tiles, Float8)
    for rows in ((128, 200), (0, 128), (130, 150)):
        part = row_range(tiles, slice(*rows))
        assert isinstance(part, Float8) and part.scale.shape == (1, 5)
    assert np.shares_memory(row_range(tiles, slice(128, 200)).codes, tiles.codes)


@pytest.mark.parametrize("missing", [0, 1, 60])
@pytest.mark.parametrize("form", FORMS)
def test_rows_of_padding_are_zeros(form: str, missing: int) -> None:
    part = row_range(random_matrix(form), slice(120, 190))
    expected = np.pad(dequantize(part), ((0, missing), (0, 0)))
    assert_same(pad_rows(part, 70 + missing), expected)


@pytest.mark.parametrize("form", FORMS)
def test_padding_alone(form: str) -> None:
    nothing = row_range(random_matrix(form), slice(ROWS, ROWS))
    assert_same(pad_rows(nothing, 3), np.zeros((3, COLUMNS), np.float32))


@pytest.mark.parametrize("columns", [(0, 128), (128, 384), (256, 512), (512, 640), (0, 640)])
@pytest.mark.parametrize("form", FORMS)
def test_columns(form: str, columns: tuple[int, int]) -> None:
    matrix = random_matrix(form)
    assert_same(take_columns(matrix, slice(*columns)), dequantize(matrix)[:, slice(*columns)])


@pytest.mark.parametrize("form", FORMS)
def test_columns_from_one_step_to_the_next(form: str) -> None:
    matrix = random_matrix(form)
    step = column_step(matrix)
    whole = dequantize(matrix)
    assert_same(take_columns(matrix, slice(step, 3 * step)), whole[:, step : 3 * step])
    parts = [slice(at, min(at + step, COLUMNS)) for at in range(0, COLUMNS, step)][:20]
    assert_same(take_columns(matrix, parts[-1]), whole[:, parts[-1]])


@pytest.mark.parametrize(
    ("form", "step"),
    [
        ("bf16", 1),
        ("q4_0", 32),
        ("q4_k", 32),
        ("q6_k", 32),
        ("int4_g128", 32),
        ("int8_rows", 32),
        ("f8_tile", 128),
        ("f8_group", 128),
    ],
)
def test_step_is_that_of_the_groups(form: str, step: int) -> None:
    assert column_step(random_matrix(form)) == step


@pytest.mark.parametrize("form", ["f8_row", "f8_all"])
def test_scales_of_whole_rows_let_columns_be_cut_anywhere(form: str) -> None:
    matrix = random_matrix(form)
    assert column_step(matrix) == 1
    part = take_columns(matrix, slice(7, 300))
    assert isinstance(part, Float8) and part.block[1] == 293
    assert_same(part, dequantize(matrix)[:, 7:300])


@pytest.mark.parametrize("form", ["q4_k", "q6_k"])
def test_super_scales_stay_if_none_is_cut(form: str) -> None:
    matrix = random_matrix(form)
    kept = take_columns(matrix, slice(256, 512))
    cut = take_columns(matrix, slice(256, 384))
    assert isinstance(kept, Affine) and kept.super_scale is not None
    assert isinstance(cut, Affine) and cut.super_scale is None and cut.scale.dtype == np.float32


@pytest.mark.parametrize("form", COARSE)
def test_coarse_groups_stay_if_none_is_cut(form: str) -> None:
    matrix = random_matrix(form)
    assert isinstance(matrix, Affine)
    from_a_group, cut = slice(384, 640), slice(32, 640)
    kept = take_columns(matrix, slice(0, 96) if form == "int8_rows" else from_a_group)
    assert isinstance(kept, Affine) and kept.group == matrix.group
    finer = take_columns(matrix, cut)
    assert isinstance(finer, Affine) and finer.group == 32
    assert_same(finer, dequantize(matrix)[:, cut])


@pytest.mark.parametrize("form", COARSE)
def test_split_groups_have_the_same_values(form: str) -> None:
    matrix = random_matrix(form)
    assert isinstance(matrix, Affine) and split_groups(matrix, matrix.group) is matrix
    finer = split_groups(matrix, 32)
    assert finer.scale.shape == (ROWS, COLUMNS // 32) and finer.scale.flags.c_contiguous
    assert_same(finer, dequantize(matrix))


@pytest.mark.parametrize("form", AFFINE)
def test_folded_super_scales_have_the_same_values(form: str) -> None:
    matrix = random_matrix(form)
    assert isinstance(matrix, Affine)
    flat = fold_super_scales(matrix)
    assert flat.super_scale is None and flat.super_minimum is None
    assert_same(flat, dequantize(matrix))


@pytest.mark.parametrize("width", [16, 64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_columns_in_another_order(form: str, width: int) -> None:
    matrix = random_matrix(form)
    order = np.random.default_rng(0).permutation(COLUMNS // width)
    blocks = dequantize(matrix).reshape(ROWS, -1, width)[:, order]
    assert_same(take_column_blocks(matrix, order, width), blocks.reshape(ROWS, COLUMNS))


@pytest.mark.parametrize("form", FORMS)
def test_a_factor_keeps_the_type_of_the_weights(form: str) -> None:
    matrix = random_matrix(form)
    assert_same(scaled(matrix, 2.0), dequantize(matrix) * np.float32(2))
    third = scaled(matrix, 1 / 3)
    assert type(third) is type(matrix)
    close = {"rtol": 2**-8, "atol": 1e-6}
    np.testing.assert_allclose(dequantize(third), dequantize(matrix) / 3, **close)


def test_taken_columns_are_copies() -> None:
    matrix = random_matrix("f32")
    part = take_columns(matrix, slice(0, 32))
    assert size_bytes(part) == 4 * ROWS * 32
    assert not np.shares_memory(part.data, matrix.data) and part.data.flags.c_contiguous
