"""Folders of 8-bit floats: every form is read, and faults and unsupported forms are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.kernels.weights import Dense, Float8
from penstock.quant.checkpoint import Checkpoint, extra_bytes
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.float8_checkpoint import Float8Storage
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quant.safetensors.quantization_config import read_scheme
from tests.support.checkpoints.float8_checkpoints import Form, quantization_config, quantized

FORMS: list[Form] = ["fp8-block", "fp8-tensor", "channel", "tensor", "block", "group"]
SHAPE = (200, 300)


def tensors(form: Form = "fp8-block") -> dict[str, torch.Tensor]:
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    codes, scale, _ = quantized(weight, form)
    suffix = "_inv" if form == "fp8-block" else ""
    plain = torch.ones(3, 4, dtype=torch.bfloat16)
    return {"a.weight": codes, f"a.weight_scale{suffix}": scale, "b.weight": plain}


def opened(
    folder: Path,
    config: dict[str, Any],
    held: dict[str, torch.Tensor],
    as_: Float8Storage = "float8",
) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    save_file(held, folder / "model.safetensors")
    return open_checkpoint(folder, as_)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", FORMS)
def test_codes_and_scales_are_one_matrix(tmp_path: Path, form: Form, dtype: torch.dtype) -> None:
    held = tensors(form)
    name = next(name for name in held if "scale" in name)
    held[name] = held[name].to(dtype)
    checkpoint = opened(tmp_path, quantization_config(form), held)
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    matrix = checkpoint.matrix("a.weight")
    assert isinstance(matrix, Float8)
    scale = held[name].float()
    if form in ("fp8-block", "block"):
        scale = scale.repeat_interleave(128, 0)[: SHAPE[0]]
    if form in ("fp8-block", "block", "group"):
        scale = scale.repeat_interleave(128, 1)[:, : SHAPE[1]]
    expected = held["a.weight"].float() * scale
    np.testing.assert_array_equal(dequantize(matrix), expected.numpy())
    assert extra_bytes(checkpoint) == 0


@pytest.mark.parametrize("shape", [(200,), (200, 1)])
def test_scales_of_rows_may_have_one_or_two_dimensions(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    held = tensors("channel")
    held["a.weight_scale"] = held["a.weight_scale"].reshape(shape)
    matrix = opened(tmp_path, quantization_config("channel"), held).matrix("a.weight")
    assert isinstance(matrix, Float8) and matrix.block == (1, 300)


def test_bfloat16_storage_counts_its_extra_bytes(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, quantization_config("fp8-block"), tensors(), "bf16")
    matrix = checkpoint.matrix("a.weight")
    assert isinstance(matrix, Dense) and matrix.dtype == "bf16"
    assert extra_bytes(checkpoint) == SHAPE[0] * SHAPE[1]


def test_unquantized_tensors_are_unchanged(tmp_path: Path) -> None:
    matrix = opened(tmp_path, quantization_config("fp8-block"), tensors()).matrix("b.weight")
    assert isinstance(matrix, Dense) and matrix.dtype == "bf16"


def test_static_scales_of_activations_are_ignored(tmp_path: Path) -> None:
    held = tensors("fp8-tensor") | {"a.input_scale": torch.tensor(0.5)}
    checkpoint = opened(tmp_path, quantization_config("fp8-tensor"), held)
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}


def test_an_unquantized_folder_is_a_plain_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"b.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path, "bf16")
    assert checkpoint.matrix("b.weight").shape == (3, 4) and extra_bytes(checkpoint) == 0


@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_weight_that_is_not_a_number_is_named(tmp_path: Path, code: int) -> None:
    held = tensors()
    held["a.weight"].view(torch.uint8)[199, 299] = code
    checkpoint = opened(tmp_path, quantization_config("fp8-block"), held)
    with pytest.raises(ModelError, match=r"a\.weight: not all numbers are finite"):
        checkpoint.matrix("a.weight")


@pytest.mark.parametrize("code", [0x7C, 0x7F, 0xFD])
def test_an_infinite_weight_of_e5m2_is_named(tmp_path: Path, code: int) -> None:
    codes = torch.ones(SHAPE).to(torch.float8_e5m2)
    codes.view(torch.uint8)[199, 299] = code
    held = {"a.weight": codes, "a.weight_scale": torch.ones(())}
    checkpoint = opened(tmp_path, quantization_config("fp8-tensor") | {"fmt": "e5m2"}, held)
    with pytest.raises(ModelError, match=r"a\.weight: not all numbers are finite"):
        checkpoint.matrix("a.weight")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e37])
def test_a_scale_that_is_not_a_number_is_named(tmp_path: Path, value: float) -> None:
    held = tensors()
    held["a.weight_scale_inv"][1, 2] = value
    checkpoint = opened(tmp_path, quantization_config("fp8-block"), held)
    with pytest.raises(ModelError, match=r"a\.weight_scale_inv: not all numbers are finite"):
        checkpoint.matrix("a.weight")


@pytest.mark.parametrize(
    ("form", "scale", "message"),
    [
        ("fp8-block", None, r"tensor a\.weight_scale_inv or a\.weight_scale is missing"),
        ("fp8-block", (3, 2), r"a\.weight_scale_inv has shape \(3, 2\), expected \(2, 3\)"),
        ("fp8-block", (200, 1), r"shape \(200, 1\), expected \(2, 3\)"),
        ("channel", (300, 1), r"a\.weight_scale has shape \(300, 1\), expected \(200, 1\)"),
        ("group", (200, 2), r"shape \(200, 2\), expected \(200, 3\)"),
    ],
)
def test_scales_that_do_not_fit_are_named(
    tmp_path: Path, form: Form, scale: tuple[int, ...] | None, message: str
) -> None:
    held = tensors(form)
    name = next(name for name in held if "scale" in name)
    del held[name]
    if scale is not None:
        held[name] = torch.ones(scale)
    with pytest.raises(ModelError, match=message):
        opened(tmp_path, quantization_config(form), held)


def test_a_scale_without_8_bits_stays_a_tensor(tmp_path: Path) -> None:
    held = tensors() | {"b.weight_scale_inv": torch.ones(1, 1)}
    checkpoint = opened(tmp_path, quantization_config("fp8-block"), held)
    assert "b.weight_scale_inv" in checkpoint.tensors


@pytest.mark.parametrize("method", ["aqlm", "quanto", "spqr", None, 3])
def test_another_method_is_refused_by_its_name(tmp_path: Path, method: object) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": {"quant_method": method, "bits": "4"}}))
    with pytest.raises(ModelError, match=f"{method} weights are not supported, known are fp8"):
        read_scheme(path)


GROUP = quantization_config("channel")["config_groups"]["group_0"]


def group(**changes: Any) -> dict[str, Any]:
    return {"config_groups": {"g": GROUP | {"weights": GROUP["weights"] | changes}}}


BOTH = {"a": GROUP} | group(strategy="group", group_size=128)["config_groups"]


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("fp8-block", {"fmt": "e3m4"}, "fmt 'e3m4'"),
        ("fp8-block", {"activation_scheme": "odd"}, "activation_scheme 'odd'"),
        ("fp8-block", {"weight_block_size": [0, 128]}, r"weight_block_size \[0, 128\]"),
        ("fp8-block", {"weight_block_size": []}, r"weight_block_size \[\]"),
        ("fp8-block", {"weight_block_size": 128}, "weight_block_size"),
        ("channel", {"format": "marlin-24"}, "format 'marlin-24'"),
        ("channel", {"format": None}, "format None"),
        ("channel", {"sparsity_config": {"format": "x"}}, "sparsity_config is not supported"),
        ("channel", {"transform_config": {"config_groups": {"r": {}}}}, "transform_config is not"),
        ("channel", {"config_groups": {}}, "config_groups are missing"),
        ("channel", {"config_groups": {"g": {}}}, "g: weights are missing"),
        ("channel", group(type="int"), "weights are int of 8 bits"),
        ("channel", group(num_bits=4), "weights are float of 4 bits"),
        ("channel", group(symmetric=False), "symmetric"),
        ("channel", group(strategy="attn_head"), "strategy 'attn_head'"),
        ("channel", group(strategy="group", group_size=0), "group_size 0"),
        ("channel", group(strategy="block", block_structure=[64]), "block_structure"),
        ("channel", {"config_groups": BOTH}, "one form of 8-bit floats"),
    ],
)
def test_a_form_that_is_not_supported_is_named(
    tmp_path: Path, form: Form, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": quantization_config(form) | change}))
    with pytest.raises(ModelError, match=message) as raised:
        read_scheme(path)
    assert str(path) in str(raised.value)


def by_block(codes: torch.Tensor, scale: torch.Tensor, block: tuple[int, int]) -> np.ndarray:
    """Return the float32 values of codes with a scale per block."""
    rows, columns = codes.shape
    spread = scale.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return (codes.float() * spread[:rows, :columns]).numpy()


def random_codes() -> torch.Tensor:
    weight = torch.randn(SHAPE, generator=torch.Generator().manual_seed(2)) * 100
    return weight.to(torch.float8_e4m3fn)


@pytest.mark.parametrize("block", [(64, 256), (32, 128), (128, 512), (16, 64), (1, 32), (7, 48)])
def test_blocks_of_any_size_have_the_values_of_their_scales(
    tmp_path: Path, block: tuple[int, int]
) -> None:
    codes = random_codes()
    grid = [-(-size // step) for size, step in zip(SHAPE, block, strict=True)]
    scale = torch.rand(grid, generator=torch.Generator().manual_seed(3)) + 0.5
    held = {"a.weight": codes, "a.weight_scale_inv": scale}
    config = quantization_config("fp8-block") | {"weight_block_size": list(block)}
    checkpoint = opened(tmp_path, config, held)
    matrix, sample = checkpoint.matrix("a.weight"), checkpoint.layout_sample("a.weight")
    expected = by_block(codes, scale, block)
    narrow = torch.from_numpy(expected).bfloat16().float().numpy()
    if block[1] % 128 == 0:  # in parts that kernels read
        assert isinstance(matrix, Float8) and isinstance(sample, Float8)
        assert sample.block[1] == matrix.block[1] in (128, SHAPE[1])
        np.testing.assert_array_equal(dequantize(matrix), expected)
    else:
        assert isinstance(matrix, Dense) and isinstance(sample, Dense)
        np.testing.assert_array_equal(dequantize(matrix), narrow)
        assert extra_bytes(checkpoint) == codes.numel()
    np.testing.assert_array_equal(
        dequantize(opened(tmp_path, config, held, "bf16").matrix("a.weight")), narrow
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu])
def test_scales_may_be_powers_of_two(tmp_path: Path, dtype: torch.dtype) -> None:
    codes = random_codes()
    exponents = torch.randint(100, 140, (2, 3), generator=torch.Generator().manual_seed(3))
    stored = exponents.to(torch.uint8).view(dtype)
    held = {"a.weight": codes, "a.weight_scale_inv": stored}
    matrix = opened(tmp_path, quantization_config("fp8-block"), held).matrix("a.weight")
    expected = by_block(codes, 2.0 ** (exponents - 127), (128, 128))
    np.testing.assert_array_equal(dequantize(matrix), expected)
    stored.view(torch.uint8)[1, 1] = 255
    checkpoint = opened(tmp_path, quantization_config("fp8-block"), held)
    with pytest.raises(ModelError, match=r"a\.weight_scale_inv: not all numbers are finite"):
        checkpoint.matrix("a.weight")


@pytest.mark.parametrize(
    ("method", "scale"),
    [
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, (200, 1)),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ()),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, (200,)),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, (2, 1, 3, 1)),
    ],
)
def test_other_methods_with_8_bit_floats(
    tmp_path: Path, method: dict[str, Any], scale: tuple[int, ...]
) -> None:
    codes, scales = random_codes(), torch.rand(scale) + 0.5
    held = {
        "a.weight": codes,
        "a.weight_scale": scales,
        "a.input_scale_ub": torch.ones(1),
        "k.k_scale": torch.ones(1),  # of a KV cache in 8-bit floats
    }
    checkpoint = opened(tmp_path, method, held)
    assert set(checkpoint.tensors) == {"a.weight"}
    block = (128, 128) if len(scale) == 4 else (1, 300) if len(scale) else SHAPE
    grid = scales.reshape(2, 3) if len(scale) == 4 else scales.reshape(-1, 1)
    np.testing.assert_array_equal(
        dequantize(checkpoint.matrix("a.weight")), by_block(codes, grid, block)
    )


def test_older_folders_of_modelopt_have_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    save_file(
        {"a.weight": random_codes(), "a.weight_scale": torch.ones(())},
        tmp_path / "model.safetensors",
    )
    assert isinstance(open_checkpoint(tmp_path, "float8").matrix("a.weight"), Float8)
    beside.write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ModelError, match="quant_algo 'W4A8_AWQ' is not supported"):
        open_checkpoint(tmp_path, "float8")
    beside.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    save_file({"b.weight": torch.ones(3, 4)}, tmp_path / "model.safetensors")
    assert open_checkpoint(tmp_path, "float8").matrix("b.weight").shape == (3, 4)
