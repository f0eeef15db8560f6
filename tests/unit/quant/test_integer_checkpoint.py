"""Folders of integers in groups: every form is read exactly, and faults are named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.kernels.regroup import split_groups
from penstock.kernels.weights import Affine, Dense
from penstock.quant.affine import affine_from_zero_points, narrow_to_float16, unify_affine
from penstock.quant.checkpoint import Checkpoint, extra_bytes, size_note
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quant.safetensors.quantization_config import read_scheme
from penstock.quant.weight_slices import size_bytes
from tests.support.checkpoints.integer_checkpoints import (
    FORMS,
    Form,
    Quantized,
    quantization,
    quantize,
    stored,
)

SHAPE = (40, 192)


def random_quantized(form: Form) -> Quantized:
    """Return a matrix whose groups differ in scale and center; the first group is all positive."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(SHAPE, generator=random) * torch.linspace(0.1, 2, SHAPE[1])
    weight[:, 1::3] += 0.3
    weight[0, :96] = weight[0, :96].abs() + 0.1
    return quantize(weight, form)


def opened(folder: Path, form: Form, held: dict[str, torch.Tensor], **keys: Any) -> Checkpoint:
    config = quantization(form)
    (folder / "config.json").write_text(json.dumps(config | keys))
    save_file(held, folder / "model.safetensors")
    return open_checkpoint(folder, "bf16")


def tensors(form: Form, prefix: str = "a") -> dict[str, torch.Tensor]:
    return stored(prefix, random_quantized(form), form) | {"b.weight": torch.ones(3, 4)}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_matrix_has_exactly_the_values_of_its_tensors(tmp_path: Path, form: Form) -> None:
    checkpoint = opened(tmp_path, form, tensors(form))
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    assert checkpoint.tensors["a.weight"].shape == SHAPE
    matrix = checkpoint.matrix("a.weight")
    assert isinstance(matrix, Affine) and matrix.shape == SHAPE and matrix.bits == form.bits
    assert (matrix.minimum is None) == form.symmetric
    np.testing.assert_array_equal(dequantize(matrix), random_quantized(form).meant)
    assert isinstance(checkpoint.matrix("b.weight"), Dense)


@pytest.mark.parametrize("name", ["gptq", "gptq 8 bits", "packed", "packed 8 bits"])
def test_rows_need_not_fill_whole_words(tmp_path: Path, name: str) -> None:
    form = FORMS[name]
    of = quantize(torch.randn(37, 64, generator=torch.Generator().manual_seed(1)), form)
    matrix = opened(tmp_path, form, stored("a", of, form)).matrix("a.weight")
    np.testing.assert_array_equal(dequantize(matrix), of.meant)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_predicted_bytes_are_never_less_than_the_actual_ones(tmp_path: Path, form: Form) -> None:
    held = tensors(form)
    checkpoint = opened(tmp_path, form, held)
    matrix, pattern = checkpoint.matrix("a.weight"), checkpoint.layout_sample("a.weight")
    assert isinstance(matrix, Affine) and isinstance(pattern, Affine)
    assert pattern.shape == (1, SHAPE[1])
    assert matrix.group == pattern.group == (form.group or SHAPE[1])
    taken, counted = size_bytes(matrix), size_bytes(pattern) * SHAPE[0]
    assert taken <= counted <= 1.4 * taken
    in_file = sum(t.nbytes for name, t in held.items() if name.startswith("a."))
    on_a_cpu = size_bytes(split_groups(pattern, 32)) * SHAPE[0]
    assert size_bytes(split_groups(matrix, 32)) <= on_a_cpu
    assert extra_bytes(checkpoint) == max(on_a_cpu - in_file, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_symmetric_groups_of_float16_take_half_a_bit_for_scales(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    form = Form("packed", symmetric=True, dtype=dtype)
    matrix = opened(tmp_path, form, tensors(form)).matrix("a.weight")
    assert isinstance(matrix, Affine) and matrix.scale.dtype == np.float16
    assert matrix.minimum is None and matrix.zero_point == 8


def test_a_scale_too_small_for_float16_makes_all_float32(tmp_path: Path) -> None:
    form = Form("packed", symmetric=True, dtype=torch.bfloat16)
    held = tensors(form)
    held["a.weight_scale"][3, 2] = 2.0**-30
    matrix = opened(tmp_path, form, held).matrix("a.weight")
    assert isinstance(matrix, Affine) and matrix.scale.dtype == np.float32
    assert matrix.scale[3, 2] == 2.0**-30


def test_zero_points_of_older_files_are_signed_bytes(tmp_path: Path) -> None:
    form = FORMS["packed"]
    held = tensors(form)
    zero = torch.from_numpy((random_quantized(form).zero - 8).astype(np.int8))
    matrix = opened(tmp_path, form, held | {"a.weight_zero_point": zero}).matrix("a.weight")
    np.testing.assert_array_equal(dequantize(matrix), random_quantized(form).meant)
    zero[2, 1] = 8
    checkpoint = opened(tmp_path, form, held | {"a.weight_zero_point": zero})
    with pytest.raises(ModelError, match=r"a\.weight: zero points are not all in range"):
        checkpoint.matrix("a.weight")


def test_a_list_of_groups_may_be_absent_or_unfilled(tmp_path: Path) -> None:
    held = tensors(FORMS["gptq"])
    del held["a.g_idx"]
    expected = random_quantized(FORMS["gptq"]).meant
    plain = opened(tmp_path, FORMS["gptq"], held).matrix("a.weight")
    np.testing.assert_array_equal(dequantize(plain), expected)
    unfilled = tensors(FORMS["packed"]) | {"a.weight_g_idx": torch.full((192,), -1)}
    matrix = opened(tmp_path, FORMS["packed"], unfilled).matrix("a.weight")
    np.testing.assert_array_equal(dequantize(matrix), random_quantized(FORMS["packed"]).meant)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("form", "name"),
    [("gptq", "a.g_idx"), ("gptq 8 bits", "a.g_idx"), ("packed", "a.weight_g_idx")],
)
def test_reordered_columns_are_held_as_floats(
    tmp_path: Path, form: str, name: str, dtype: torch.dtype
) -> None:
    """The values have the scale and zero point of the column's group, and are rounded
    to the type of the scales."""
    kind = replace(FORMS[form], dtype=dtype)
    of, group = random_quantized(kind), kind.group or SHAPE[1]
    order = (torch.arange(192) // group)[torch.randperm(192)].to(torch.int32)
    checkpoint = opened(tmp_path, kind, stored("a", of, kind) | {name: order})
    matrix, sample = checkpoint.matrix("a.weight"), checkpoint.layout_sample("a.weight")
    assert isinstance(matrix, Dense) and isinstance(sample, Dense)
    exact = (of.q - of.zero[:, order]) * of.scale.double().numpy()[:, order]
    expected = torch.from_numpy(exact).to(dtype).float().numpy()
    np.testing.assert_array_equal(dequantize(matrix), expected)
    assert sample.dtype == matrix.dtype and sample.shape == (1, 192)
    in_file = checkpoint.tensors["a.weight"].size_bytes
    assert extra_bytes(checkpoint) == matrix.data.nbytes - in_file
    assert "with reordered columns takes" in size_note(checkpoint, "cpu")


@pytest.mark.parametrize("value", [6, -1, 2**31 - 1, -(2**31)])
def test_an_invalid_group_index_is_named(tmp_path: Path, value: int) -> None:
    held = tensors(FORMS["gptq"])
    held["a.g_idx"][7] = value
    with pytest.raises(ModelError, match=r"a\.g_idx: not all values are in 0\.\.5"):
        opened(tmp_path, FORMS["gptq"], held)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e37])
@pytest.mark.parametrize("name", ["a.scales", "a.biases"])
def test_a_scale_or_minimum_that_is_not_a_number_is_named(
    tmp_path: Path, name: str, value: float
) -> None:
    form = FORMS["mlx in float32"]
    held = tensors(form)
    held[name][39, 2] = value
    checkpoint = opened(tmp_path, form, held)
    with pytest.raises(ModelError, match=rf"{name}: not all numbers are finite"):
        checkpoint.matrix("a.weight")


ONES = torch.ones
INTS = torch.int32
FAULTS: list[tuple[str, str, torch.Tensor | None, str]] = [
    ("gptq", "a.qzeros", None, r"tensor a\.qzeros is missing"),
    ("gptq", "a.scales", None, r"tensor a\.scales is missing"),
    ("gptq", "a.scales", ONES(6, 39), r"a\.scales has shape \(6, 39\), expected \(6, 40\)"),
    ("gptq", "a.scales", ONES(6, 40, dtype=INTS), r"a\.scales has type I32, expected F16"),
    ("gptq", "a.qzeros", ONES(7, 5, dtype=INTS), r"a\.qzeros has shape \(7, 5\)"),
    ("gptq", "a.qzeros", ONES(6, 5), r"a\.qzeros has type F32, expected I32 or U32"),
    ("gptq", "a.g_idx", ONES(191, dtype=INTS), r"a\.g_idx has shape \(191,\)"),
    ("gptq", "a.qweight", ONES(24, 40), r"a\.qweight has type F32"),
    ("gptq", "a.qweight", ONES(24, 40, 1, dtype=INTS), r"a\.qweight: expected a matrix"),
    ("gptq", "a.qweight", ONES(0, 40, dtype=INTS), r"a\.qweight: is empty"),
    ("gptq", "a.qweight", ONES(24, 0, dtype=INTS), r"a\.qweight: is empty"),
    ("gptq", "a.qweight", ONES(23, 40, dtype=INTS), r"a\.qweight: 184 columns are not supported"),
    ("gptq", "a.weight", ONES(40, 192), r"has both a\.weight and a\.qweight"),
    ("awq", "a.qweight", ONES(192, 6, dtype=INTS), r"a\.qzeros has shape \(6, 5\), expected"),
    ("awq", "a.qweight", ONES(190, 5, dtype=INTS), r"a\.qweight: 190 columns are not"),
    ("packed", "a.weight_scale", ONES(40, 1), r"a\.weight_scale has shape \(40, 1\), expected"),
    ("packed", "a.weight_shape", ONES(3).long(), r"a\.weight_shape has shape \(3,\)"),
    ("packed", "a.weight_zero_point", ONES(40, 6, dtype=INTS), r"expected \(5, 6\)"),
    ("int8", "a.weight_scale", None, r"tensor a\.weight_scale is missing"),
    ("int8", "a.weight_scale", ONES(39), r"expected \(40, 1\)"),
    ("mlx", "a.biases", None, r"tensor a\.biases is missing"),
    ("mlx", "a.weight", ONES(40, 24, dtype=torch.uint32), r"$"),
    ("mlx", "a.weight", ONES(2, 40, 24, dtype=torch.uint32), r"expected \(2, 40, 6\)"),
]


@pytest.mark.parametrize(("form", "name", "tensor", "message"), FAULTS)
def test_tensors_that_do_not_fit_are_named(
    tmp_path: Path, form: str, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    held = tensors(FORMS[form])
    held.pop(name, None)
    if tensor is not None:
        held[name] = tensor
    if message == "$":  # a change that still fits
        assert opened(tmp_path, FORMS[form], held).matrix("a.weight").shape == SHAPE
        return
    with pytest.raises(ModelError, match=message) as raised:
        opened(tmp_path, FORMS[form], held)
    assert str(tmp_path) in str(raised.value)


def test_a_weight_shape_that_does_not_match_is_named(tmp_path: Path) -> None:
    held = tensors(FORMS["packed"]) | {"a.weight_shape": torch.tensor([2**40, 192])}
    checkpoint = opened(tmp_path, FORMS["packed"], held)
    with pytest.raises(ModelError, match=r"a\.weight_shape is \[1099511627776, 192\], but"):
        checkpoint.matrix("a.weight")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_corrupt_tensors_are_read_or_named(tmp_path: Path, form: Form) -> None:
    """No truncated tensor, wrong type or number raises any error other than ModelError."""
    random = np.random.default_rng(0)
    for _ in range(40):
        held = tensors(form)
        name = str(random.choice([one for one in held if one.startswith("a.")]))
        tensor = held[name].reshape(-1)
        kind = random.integers(3)
        if kind == 0:
            held[name] = tensor[: random.integers(tensor.numel() + 1)].clone()
        elif kind == 1:
            held[name] = held[name].to(random.choice([torch.int8, torch.int64, torch.float32]))
        else:
            bits = tensor.view(torch.uint8).numpy()
            bits[:] = random.integers(0, 256, bits.size)
            held[name] = tensor.reshape(held[name].shape)
        try:
            opened(tmp_path, form, held).matrix("a.weight")
        except ModelError as error:
            assert str(tmp_path) in str(error) and "a." in str(error)


def test_modules_of_mlx_may_have_groups_of_their_own(tmp_path: Path) -> None:
    form, own = FORMS["mlx"], FORMS["mlx 8 bits"]
    groups = quantization(form)["quantization"] | {
        "e": {"group_size": 64, "bits": 8},
        "b": False,
    }
    held = tensors(form) | stored("e", random_quantized(own), own)
    checkpoint = opened(tmp_path, form, held, quantization=groups)
    for name, of in (("a.weight", form), ("e.weight", own)):
        np.testing.assert_array_equal(
            dequantize(checkpoint.matrix(name)), random_quantized(of).meant
        )


def test_experts_of_mlx_are_one_tensor_and_alike(tmp_path: Path) -> None:
    form = FORMS["mlx"]
    one, other = (
        stored("a", random_quantized(form), form),
        stored("a", random_quantized(form), form),
    )
    other["a.scales"][0, 0] = 2.0**-30
    checkpoint = opened(
        tmp_path, form, {name: torch.stack((one[name], other[name])) for name in one}
    )
    assert checkpoint.tensors["a.weight"].shape == (2, *SHAPE)
    first, second = checkpoint.stack("a.weight")
    assert isinstance(first, Affine) and isinstance(second, Affine)
    assert first.scale.dtype == second.scale.dtype == np.float32
    np.testing.assert_array_equal(dequantize(first), random_quantized(form).meant)
    with pytest.raises(ModelError, match=r"a\.weight: expected a matrix"):
        checkpoint.matrix("a.weight")


def small(zero: int, scale: float = 0.5) -> Affine:
    q = np.full((1, 16), 0x73, np.uint8)
    factors, zeros = np.full((1, 1), scale, np.float32), np.full((1, 1), zero, np.uint8)
    return affine_from_zero_points(4, 32, q, factors, zeros, "w")


def test_varying_zero_points_become_minima() -> None:
    alike = unify_affine((small(7), small(8)), "w")
    assert all(isinstance(one, Affine) and one.minimum is not None for one in alike)
    for before, after in zip((small(7), small(8)), alike, strict=True):
        np.testing.assert_array_equal(dequantize(after), dequantize(before))
    with pytest.raises(ModelError, match="w: 24-bit scales with varying zero points"):
        unify_affine((small(7, 1 + 2.0**-23), small(8)), "w")


def test_zero_points_without_exact_float32_minima_are_refused() -> None:
    scale = np.full((1, 2), 1 + 2.0**-23, np.float32)
    zero = np.array([[7, 8]], np.uint8)
    with pytest.raises(ModelError, match="w: 24-bit scales"):
        affine_from_zero_points(4, 32, np.zeros((1, 32), np.uint8), scale, zero, "w")


def test_scales_are_float16_if_that_is_exact() -> None:
    assert narrow_to_float16(np.array([[1.5]], np.float32))[0].dtype == np.float16
    for value in (1 + 2.0**-12, 1e6, 2.0**-25):
        both = narrow_to_float16(np.array([[value]], np.float32), np.array([[1.5]], np.float32))
        assert [one.dtype for one in both] == [np.float32, np.float32]


PACKED = quantization(FORMS["packed"])["quantization_config"]


def weights(**changes: Any) -> dict[str, Any]:
    group = PACKED["config_groups"]["group_0"]
    return {"config_groups": {"g": group | {"weights": group["weights"] | changes}}}


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("gptq", {"bits": 5}, "integers of 5 bits are not supported"),
        ("gptq", {"bits": "4"}, "bits"),
        ("gptq", {"group_size": 48}, "group_size 48 is not supported"),
        ("gptq", {"group_size": 0}, "group_size 0 is not supported"),
        ("gptq", {"checkpoint_format": "bitblas"}, "checkpoint_format 'bitblas'"),
        ("gptq", {"is_marlin_format": True, "bits": 8}, "integers of 8 bits are not supported"),
        ("awq", {"version": "ipex"}, "version 'ipex' is not supported, known: gemm"),
        ("awq", {"bits": 8}, "bits 8 is not supported"),
        ("packed", weights(num_bits=9), "integers of 9 bits"),
        ("packed", weights(type="float"), "weights are float"),
        ("packed", weights(strategy="tensor_group"), "strategy 'tensor_group'"),
        ("packed", weights(group_size=None), "group_size is missing"),
        ("packed", {"format": "nvfp4-pack-quantized"}, "type 'int' is not supported"),
        ("packed", {"format": "marlin-24"}, "format 'marlin-24'"),
    ],
)
def test_a_form_that_is_not_supported_is_named(
    tmp_path: Path, form: str, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    config = quantization(FORMS[form])["quantization_config"] | change
    path.write_text(json.dumps({"quantization_config": config}))
    with pytest.raises(ModelError, match=message) as raised:
        read_scheme(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"group_size": 64, "bits": 7}, "integers of 7 bits"),
        ({"group_size": 32, "bits": 4, "mode": "mxfp6"}, "mode 'mxfp6'"),
        ({"group_size": 32, "bits": 4, "mode": "mxfp8"}, r"\(4, 32\) is not supported"),
        ({"bits": 4}, "group_size"),
        (
            {"group_size": 64, "bits": 4, "a": {"group_size": 64, "bits": 7}},
            "a: integers of 7 bits",
        ),
    ],
)
def test_groups_of_mlx_that_are_not_supported_are_named(
    tmp_path: Path, groups: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization": groups, "quantization_config": groups}))
    with pytest.raises(ModelError, match=message) as raised:
        read_scheme(path)
    assert f"{path}: quantization" in str(raised.value)


def test_modules_excluded_by_rules_are_ignored(tmp_path: Path) -> None:
    form = replace(FORMS["gptq"], symmetric=True)
    config = quantization(form)["quantization_config"] | {"dynamic": {"-:.*b": {}}}
    checkpoint = opened(tmp_path, form, tensors(form), quantization_config=config)
    assert checkpoint.matrix("b.weight").shape == (3, 4)
