"""Folders of every quantization method are read with the values that their formats define, and
faults are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.base.errors import ModelError
from penstock.kernels.weights import Affine, Dense
from penstock.quant.checkpoint import Checkpoint, extra_bytes, size_note
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from penstock.quant.weight_slices import size_bytes
from tests.support.checkpoints.packings import PACKINGS, quark, torchao
from tests.support.checkpoints.quantized_folders import FORMATS as PLAIN
from tests.support.checkpoints.quantized_folders import Format, Tensors, ct

FORMATS = PLAIN | PACKINGS
SHAPE = (64, 192)
HELD_AS_FLOATS = ("nf4", "groups of rows", "act-order", "mxfp8", "e5m2", "fp8", "float8")


def weight() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn(SHAPE, generator=random) * torch.linspace(0.1, 2, SHAPE[1])


def opened(folder: Path, config: dict[str, Any], held: Tensors) -> Checkpoint:
    key = "quantization" if "mode" in config else "quantization_config"
    (folder / "config.json").write_text(json.dumps({key: config}))
    save_file({name: one.contiguous() for name, one in held.items()}, folder / "model.safetensors")
    return open_checkpoint(folder, "bf16")


_written: dict[int, Tensors] = {}


def tensors(form: Format) -> Tensors:
    if id(form) not in _written:
        _written[id(form)], _ = form.write(weight())
    parts = _written[id(form)]
    return {f"a.{last}": part for last, part in parts.items()} | {"b.weight": torch.ones(3, 4)}


@pytest.mark.parametrize("name", FORMATS)
def test_a_matrix_has_the_values_of_its_format(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    _, meant = form.write(weight())
    checkpoint = opened(tmp_path, form.config, tensors(form))
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    assert checkpoint.tensors["a.weight"].shape == SHAPE
    matrix = checkpoint.matrix("a.weight")
    np.testing.assert_array_equal(dequantize(matrix), meant.numpy())
    assert isinstance(matrix, Dense) == any(words in name for words in HELD_AS_FLOATS)


@pytest.mark.parametrize("name", FORMATS)
def test_predicted_bytes_are_never_less_than_the_actual_ones(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    checkpoint = opened(tmp_path, form.config, tensors(form))
    matrix, sample = checkpoint.matrix("a.weight"), checkpoint.layout_sample("a.weight")
    per_weight = size_bytes(sample) / (sample.shape[0] * sample.shape[1])
    taken, counted = size_bytes(matrix), per_weight * SHAPE[0] * SHAPE[1]
    assert taken <= counted <= 1.4 * taken
    if isinstance(matrix, Affine) and isinstance(sample, Affine):
        assert (matrix.bits, matrix.group) == (sample.bits, sample.group)


@pytest.mark.parametrize(
    ("name", "device", "note"),
    [
        ("nvfp4 of modelopt", "cpu", "NVFP4 takes 10 bits per weight instead of 4.5"),
        ("nvfp4 of modelopt", "gpu", "NVFP4 takes 10 bits per weight instead of 4.5"),
        ("mxfp4 of modelopt", "gpu", "MXFP4 takes 9 bits per weight instead of 4.25"),
        ("mxfp4 of modelopt", "cpu", None),
        ("nf4", "cpu", "bitsandbytes 4-bit takes 16 bits per weight instead of"),
        ("gptq act-order", "cpu", "GPTQ with reordered columns takes 16 bits per weight"),
        ("hqq 4 bits", "gpu", None),
    ],
)
def test_formats_that_no_kernel_reads_at_their_size_are_named(
    tmp_path: Path, name: str, device: Any, note: str | None
) -> None:
    form = FORMATS[name]
    found = size_note(opened(tmp_path, form.config, tensors(form)), device)
    if note is None:
        assert found == ""
    else:
        assert found.startswith(f"; no kernel reads these formats at their size: {note}")


def test_extra_bytes_are_those_of_the_floats(tmp_path: Path) -> None:
    form = FORMATS["nf4"]
    checkpoint = opened(tmp_path, form.config, tensors(form))
    in_file = checkpoint.tensors["a.weight"].size_bytes
    assert extra_bytes(checkpoint) == 2 * SHAPE[0] * SHAPE[1] - in_file


def test_modules_may_have_different_formats(tmp_path: Path) -> None:
    """The tensors of a module show its format, whatever the config's targets are."""
    names = ("nvfp4 of compressed-tensors", "mxfp8", "packed 3 bits", "packed 6 bits")
    groups = {
        name: {"format": FORMATS[name].config["format"], "targets": [r"re:.*"]}
        | {"weights": FORMATS[name].config["config_groups"]["group_0"]["weights"]}
        for name in names
    }
    config = ct("mixed-precision") | {"config_groups": groups}
    held: Tensors = {}
    for place, name in enumerate(names):
        parts, _ = FORMATS[name].write(weight())
        held |= {f"m{place}.{last}": part for last, part in parts.items()}
    checkpoint = opened(tmp_path, config, held)
    assert set(checkpoint.tensors) == {f"m{place}.weight" for place in range(len(names))}
    for place, name in enumerate(names):
        _, meant = FORMATS[name].write(weight())
        np.testing.assert_array_equal(
            dequantize(checkpoint.matrix(f"m{place}.weight")), meant.numpy()
        )


def test_modelopt_may_mix_nvfp4_and_8_bit_floats(tmp_path: Path) -> None:
    parts, meant = FORMATS["nvfp4 of modelopt"].write(weight())
    codes = weight().to(torch.float8_e4m3fn)
    held = {f"a.{last}": part for last, part in parts.items()}
    held |= {
        "b.weight": codes,
        "b.weight_scale": torch.tensor(0.5),
        "b.input_scale": torch.ones(()),
    }
    held |= {"k.k_scale": torch.ones(()), "v.v_scale": torch.ones(())}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    checkpoint = opened(tmp_path, config, held)
    assert set(checkpoint.tensors) == {"a.weight", "b.weight"}
    np.testing.assert_array_equal(dequantize(checkpoint.matrix("a.weight")), meant.numpy())
    np.testing.assert_array_equal(
        dequantize(checkpoint.matrix("b.weight")), (codes.float() * 0.5).numpy()
    )


def changed(name: str, last: str, change: Any) -> Tensors:
    held = tensors(FORMATS[name])
    held[f"a.{last}"] = change(held[f"a.{last}"].clone())
    return held


def filled(value: float, place: int = -1) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[place] = value
        return tensor

    return change


def raw(value: int) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8).view(-1)[-1] = value
        return tensor

    return change


FAULTS: list[tuple[str, str, Any, str]] = [
    ("nvfp4 of modelopt", "weight_scale", raw(0x7F), r"a\.weight: not all scales are finite"),
    ("nvfp4 of modelopt", "weight_scale_2", filled(np.inf), r"a\.weight_scale_2: not all numbers"),
    ("nvfp4 of compressed-tensors", "weight_global_scale", filled(0.0), "not all scales are"),
    ("mxfp4 of modelopt", "weight_scale", raw(255), r"a\.weight: a scale of MXFP4 is NaN"),
    ("mxfp6", "weight_scale", raw(255), r"a\.weight: a scale is NaN"),
    ("mxfp8", "weight_scale", raw(255), r"a\.weight_scale: not all numbers are finite"),
    ("hqq 4 bits", "scale", filled(np.nan), r"a\.scale: not all numbers are finite"),
    ("hqq 4 bits", "zero", filled(np.inf), r"a\.zero: not all numbers are finite"),
    ("hqq 4 bits", "group_size", filled(63), r"group_size 63 does not divide"),
    ("hqq 4 bits", "group_size", filled(48), r"group_size 48 is not supported for rows of 192"),
    ("hqq 4 bits", "nbits", filled(5), "integers of 5 bits are not supported"),
    ("hqq 4 bits", "axis", filled(2), "axis 2 is not supported, known: 0, 1"),
    ("hqq 4 bits", "shape", filled(-1), "must be two positive numbers"),
    ("hqq 4 bits", "shape", filled(2**62), r"a\.\w+ has shape|does not divide"),
    ("nf4", "weight.absmax", filled(np.inf), r"a\.weight\.absmax: not all numbers are finite"),
    ("nf4", "weight.quant_map", filled(np.nan), r"a\.weight\.quant_map: not all numbers"),
    ("nf4", "weight.quant_state.bitsandbytes__nf4", raw(0), r"a\.weight: quant_state"),
    ("bitsandbytes int8", "SCB", filled(np.nan), r"a\.SCB: not all numbers are finite"),
    ("gptq act-order", "g_idx", filled(6), r"a\.g_idx: not all values are in 0\.\.5"),
    ("gptq act-order", "g_idx", filled(-1), r"a\.g_idx: not all values are in 0\.\.5"),
    ("gptq act-order", "scales", filled(np.inf), r"a\.scales: not all numbers are finite"),
    ("awq gemv", "scales", filled(np.nan, 0), r"a\.scales: not all numbers are finite"),
    ("awq gemv_fast", "qzeros", filled(np.inf, 0), r"a\.qzeros: not all numbers"),
    ("llm-awq", "scaled_zeros", filled(np.inf, 0), r"a\.scaled_zeros: not all numbers"),
    ("gptq marlin", "s", filled(-np.inf), r"a\.s: not all numbers are finite"),
    ("mxfp8 of mlx", "scales", raw(255), r"a\.weight: not all scales are finite"),
    ("mxfp8 of mlx", "scales", raw(250), r"a\.weight: not all scales are finite"),
    ("mxfp8 of mlx", "weight", raw(0x7F), r"a\.weight: not all weights are finite"),
    ("auto-round of mxfp4", "weight_scale", raw(255), r"a\.weight: a scale of MXFP4 is NaN"),
    ("quark mxfp4", "weight_scale", raw(245), r"a\.weight: a scale of MXFP4 is 2\^118"),
    ("quark int4", "weight_scale", filled(np.nan), r"a\.weight_scale: not all numbers"),
    ("torchao int4", "_weight_zero_point", filled(np.inf), r"a\.weight_zero_point: not all"),
    ("packed 3 bits", "weight_shape", filled(191), r"weight_shape is \[64, 191\]|191 columns"),
]


@pytest.mark.parametrize(("name", "last", "change", "message"), FAULTS)
def test_faults_are_named(tmp_path: Path, name: str, last: str, change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as raised:
        opened(tmp_path, FORMATS[name].config, changed(name, last, change)).matrix("a.weight")
    assert str(tmp_path) in str(raised.value)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("auto-round 4 bits", {"packing_format": "auto_round:fake"}, "packing_format auto_round:fake"),
    ("auto-round 4 bits", {"packing_format": "itrex"}, "packing_format itrex is not supported"),
    ("auto-round 4 bits", {"bits": 9}, "integers of 9 bits are not supported"),
    ("auto-round 4 bits", {"act_bits": 8}, "act_bits 8 with integers is not supported"),
    ("auto-round 4 bits", {"group_size": [128, 128]}, "is not supported for integers"),
    ("auto-round 4 bits", {"data_type": "nvfp4_v2"}, "data_type 'nvfp4_v2' is not supported"),
    ("auto-round 4 bits", {"rotation_config": {"a": 1}}, "rotation_config is not supported"),
    ("auto-round of awq", {"bits": 8}, "integers of 8 bits are not supported"),
    ("auto-round of fp8", {"group_size": [0, 128]}, r"group_size \[0, 128\] is not supported"),
    ("auto-round of fp8", {"group_size": 32}, "group_size 32 is not supported for 8-bit floats"),
    ("auto-round of fp8", {"group_size": [128]}, r"group_size \[128\] is not supported"),
    ("awq gemv", {"version": "ipex"}, "version 'ipex' is not supported"),
    ("awq marlin", {"bits": 3}, "bits 3 is not supported"),
    ("gptq marlin", {"bits": 8}, "integers of 8 bits are not supported, known: 4"),
    ("metal", {"bits": 3}, "integers of 3 bits are not supported, known: 2, 4, 8"),
    ("mxfp8 of mlx", {"group_size": 64}, r"\(8, 64\) is not supported, known: \(8, 32\)"),
    ("quark fp8", {"export": {"weight_format": "fake_quantized"}}, "weight_format 'fake_quant"),
    ("quark fp8", {"global_quant_config": None}, "quantizes no weights"),
    ("quark fp8", quark(dtype="bfp16"), "dtype 'bfp16' is not supported, known: fp8_e4m3"),
    ("quark fp8", quark(dtype="fp4", qscheme="per_group", group_size=16), "group_size 16"),
    ("quark fp8", quark(dtype="int4", qscheme="per_channel"), "dtype 'int4' is not supported"),
    ("quark fp8", quark(dtype="fp8_e4m3", qscheme="per_block"), "block_size None"),
    ("quark fp8", {"global_quant_config": {"weight": [{"dtype": "fp4"}]}}, "two levels"),
    ("quark fp8", {"global_quant_config": {"weight": {"dtype": "int8"}, "bias": {}}}, "biases"),
    ("torchao int8", {"quant_type": "int8_weight_only"}, "saves no safetensors"),
    ("torchao int8", {"quant_type": {}}, "names no quantization"),
    ("torchao int8", torchao("NVFP4WeightOnlyConfig"), "NVFP4WeightOnlyConfig is not supported"),
    (
        "torchao int8",
        torchao("Int4WeightOnlyConfig", int4_packing_format={"_data": "TILE_PACKED_TO_4D"}),
        "int4_packing_format TILE_PACKED_TO_4D is the layout of one kind of device",
    ),
    (
        "torchao int8",
        torchao(
            "Float8WeightOnlyConfig",
            granularity={"_type": "PerBlock", "_data": {"block_size": [0, 1]}},
        ),
        r"block_size \[0, 1\] is not supported",
    ),
]


@pytest.mark.parametrize(("name", "change", "message"), REFUSED)
def test_a_form_that_is_not_supported_is_named(
    tmp_path: Path, name: str, change: dict[str, Any], message: str
) -> None:
    form = FORMATS[name]
    with pytest.raises(ModelError, match=message) as raised:
        opened(tmp_path, form.config | change, tensors(form))
    assert str(tmp_path) in str(raised.value)


def test_tiles_of_torchao_are_named(tmp_path: Path) -> None:
    form = FORMATS["torchao int8"]
    held = tensors(form) | {"c._weight_scale_and_zero": torch.ones(3, 4)}
    with pytest.raises(ModelError, match=r"c\._weight_scale_and_zero is of a layout of torchao"):
        opened(tmp_path, form.config, held)


def test_mlx_may_have_only_the_second_key(tmp_path: Path) -> None:
    form = FORMATS["mxfp4 of mlx"]
    held = tensors(form)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": form.config}))
    save_file(
        {name: one.contiguous() for name, one in held.items()}, tmp_path / "model.safetensors"
    )
    matrix = open_checkpoint(tmp_path, "bf16").matrix("a.weight")
    np.testing.assert_array_equal(dequantize(matrix), form.write(weight())[1].numpy())


@pytest.mark.parametrize("name", FORMATS)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    """If the quants are missing, the other tensors are left, which the loader refuses by name."""
    held = tensors(FORMATS[name])
    for last in [one for one in held if one.startswith("a.")]:
        left = {other: tensor for other, tensor in held.items() if other != last}
        try:
            checkpoint = opened(tmp_path, FORMATS[name].config, left)
            checkpoint.matrix("a.weight")
        except ModelError as error:
            assert "a." in str(error)


@pytest.mark.parametrize("name", FORMATS)
def test_corrupt_tensors_are_read_or_named(tmp_path: Path, name: str) -> None:
    """No truncated tensor, wrong type or number raises any error other than ModelError."""
    random = np.random.default_rng(0)
    for _ in range(30):
        held = tensors(FORMATS[name])
        last = str(random.choice([one for one in held if one.startswith("a.")]))
        tensor = held[last].contiguous().reshape(-1)
        kind = random.integers(3)
        if kind == 0:
            held[last] = tensor[: random.integers(tensor.numel() + 1)].clone()
        elif kind == 1:
            held[last] = (
                held[last]
                .float()
                .to(random.choice([torch.int8, torch.int64, torch.float32, torch.uint8]))
            )
        else:
            tensor = tensor.clone()
            bits = tensor.view(torch.uint8).numpy()
            bits[:] = random.integers(0, 256, bits.size)
            held[last] = tensor.reshape(held[last].shape)
        try:
            opened(tmp_path, FORMATS[name].config, held).matrix("a.weight")
        except ModelError as error:
            assert str(tmp_path) in str(error) and "a." in str(error)
