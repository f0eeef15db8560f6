"""Matrices that AutoAWQ, AutoRound, MLX, Quark and torchao pack are read with the values that the
packages dequantize."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint
from tests.support.bare_packages import import_bare
from tests.support.checkpoints.packings import awq, quantized, quark, round_config

ROWS, COLUMNS = 64, 256


def weight() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randn((ROWS, COLUMNS), generator=random) * torch.linspace(0.02, 0.4, COLUMNS)


def read(folder: Path, config: dict[str, Any], held: dict[str, torch.Tensor]) -> np.ndarray:
    key = "quantization" if "mode" in config else "quantization_config"
    (folder / "config.json").write_text(json.dumps({key: config}))
    named = {f"a.{name}": tensor.contiguous() for name, tensor in held.items()}
    save_file(named, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder, "bf16")
    assert set(checkpoint.tensors) == {"a.weight"}
    return dequantize(checkpoint.matrix("a.weight"))


@cache
def awq_module(name: str) -> Any:
    """Return the module of a layer of AutoAWQ, without its kernels."""
    kernels = {"awq.utils.module.try_import": lambda name: (None, f"no kernels {name}")}
    return import_bare(f"awq.modules.linear.{name}", kernels)


@cache
def round_module(name: str) -> Any:
    """Return a module of AutoRound."""
    return import_bare(name, {"auto_round.utils.get_packing_device": lambda device: "cpu"})


@cache
def quark_packing() -> Any:
    """Return the module of Quark that packs."""
    return import_bare("quark.torch.utils.pack", {"quark.torch.quantization.config": None})


def linear(values: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    layer.weight.data[:] = values
    return layer


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_awq_gemv(tmp_path: Path, group: int) -> None:
    package = awq_module("gemv")
    _, scale, zero, values = quantized(weight(), 4, group)
    zeros = torch.from_numpy(zero).float()
    layer = package.WQLinear_GEMV.from_linear(
        linear(values), 4, group, scales=scale.float(), zeros=zeros
    )
    config = awq(version="gemv", group_size=group)
    np.testing.assert_array_equal(read(tmp_path, config, layer.state_dict()), values.numpy())


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq_gemv_fast(tmp_path: Path, group: int) -> None:
    package = awq_module("gemv_fast")
    q, scale, zero, values = quantized(weight(), 4, group)
    zeros = torch.from_numpy(zero).float()
    layer = package.WQLinear_GEMVFast.from_linear(
        linear(values), 4, group, scales=scale.float(), zeros=zeros
    )
    held = layer.state_dict()
    held = {name: one.half() if one.is_floating_point() else one for name, one in held.items()}
    minimum = (-scale.float() * zeros).half().double().repeat_interleave(group, 1)
    expected = torch.from_numpy(q) * scale.double().repeat_interleave(group, 1) + minimum
    found = read(tmp_path, awq(version="gemv_fast", group_size=group), held)
    np.testing.assert_array_equal(found, expected.float().numpy())


@pytest.mark.parametrize("group", [32, 128, 256])
def test_awq_marlin(tmp_path: Path, group: int) -> None:
    package = awq_module("marlin")
    _, scale, _, values = quantized(weight(), 4, group, symmetric=True)
    layer = package.WQLinear_Marlin.from_linear(linear(values), 4, group, scales=scale.float())
    held = {"qweight": layer.qweight, "scales": layer.scales}
    config = awq(version="marlin", group_size=group)
    np.testing.assert_array_equal(read(tmp_path, config, held), values.numpy())


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize(
    ("packing", "file"), [("auto_round", "qlinear_torch"), ("auto_round:auto_gptq", "_zp")]
)
def test_auto_round(tmp_path: Path, packing: str, file: str, bits: int) -> None:
    name = file if file.startswith("q") else f"qlinear_torch{file}"
    package = round_module(f"auto_round_extension.torch.{name}")
    _, scale, zero, values = quantized(weight(), bits, 32)
    if name.endswith("_zp"):  # a zero point of 0 becomes 1 in this form
        zero = np.maximum(zero, 1)
        spread = scale.double().repeat_interleave(32, 1)
        middle = torch.from_numpy(zero).repeat_interleave(32, 1)
        q = (weight() / spread + middle).round().clamp(0, 2**bits - 1)
        values = ((q - middle) * spread).float()
    layer = package.QuantLinear(bits, 32, COLUMNS, ROWS, bias=False)
    layer.device = "cpu"
    zeros = torch.from_numpy(zero).float()
    layer.pack(linear(values), scale.float(), zeros, None, device="cpu")
    found = read(tmp_path, round_config(packing, bits), layer.state_dict())
    np.testing.assert_array_equal(found, values.numpy())


@pytest.mark.parametrize("bits", [4, 5, 6, 7])
def test_auto_round_with_the_packing_of_awq(tmp_path: Path, bits: int) -> None:
    package = round_module("auto_round.export.export_to_awq.utils")
    _, scale, zero, values = quantized(weight(), bits, 32)
    zeros = torch.from_numpy(zero).float()
    layer = package.WQLinear_GEMM.from_linear(
        linear(values), bits, 32, scales=scale.T.float(), zeros=zeros.T
    )
    held = dict(layer.state_dict())
    found = read(tmp_path, round_config("auto_round:auto_awq", bits), held)
    np.testing.assert_array_equal(found, values.numpy())


MLX = [
    *(("affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)),
    ("mxfp4", 4, 32),
    ("mxfp8", 8, 32),
    ("nvfp4", 4, 16),
]


@pytest.mark.parametrize(("mode", "bits", "group"), MLX)
def test_mlx(tmp_path: Path, mode: str, bits: int, group: int) -> None:
    core = pytest.importorskip("mlx.core")
    source = core.array(weight().numpy())
    packed = core.quantize(source, group_size=group, bits=bits, mode=mode)
    names = ("weight", "scales", "biases")[: len(packed)]
    held = {name: torch.from_numpy(np.array(one)) for name, one in zip(names, packed, strict=True)}
    config = {"group_size": group, "bits": bits, "mode": mode}
    biases = {"biases": packed[2]} if len(packed) == 3 else {}
    expected = core.dequantize(
        packed[0], packed[1], **biases, group_size=group, bits=bits, mode=mode
    )
    found = read(tmp_path, config, held)
    expected = expected.astype(core.float32)
    # MLX adds the bias to a product that it has rounded.
    at_most = 2.0**-22 * float(np.abs(found).max())
    np.testing.assert_allclose(found, np.array(expected), rtol=0, atol=at_most)


TORCHAO: list[tuple[str, dict[str, Any]]] = [
    ("Int8WeightOnlyConfig", {}),
    ("Int8DynamicActivationInt8WeightConfig", {}),
    ("Float8WeightOnlyConfig", {}),
    ("Float8DynamicActivationFloat8WeightConfig", {}),
    ("IntxWeightOnlyConfig", {"weight_dtype": torch.int4}),
    ("IntxWeightOnlyConfig", {"weight_dtype": torch.int8}),
]


@pytest.mark.parametrize(("name", "options"), TORCHAO)
def test_torchao(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    package = pytest.importorskip("torchao.quantization")
    from torchao.core.config import config_to_dict
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    if name.startswith("Intx"):
        options = options | {"granularity": package.PerGroup(32)}
    if name == "Float8DynamicActivationFloat8WeightConfig":
        options = options | {"granularity": package.PerRow()}
    config = getattr(package, name)(**options)
    layer = linear(weight()).to(torch.bfloat16)
    try:
        package.quantize_(layer, config)
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        pytest.skip(f"needs a GPU: {error}")
    held, _ = flatten_tensor_state_dict({"a.weight": layer.weight.data})
    own = {name.removeprefix("a."): one for name, one in held.items()}
    kind = {"quant_method": "torchao", "quant_type": {"default": config_to_dict(config)}}
    found = read(tmp_path, kind, own)
    expected = layer.weight.dequantize().float().numpy()
    # torchao rounds the values to bfloat16.
    np.testing.assert_allclose(found, expected, rtol=2**-8, atol=0)


@pytest.mark.parametrize("order", ["reorder", "order"])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_quark_4_bits(tmp_path: Path, dtype: str, order: str) -> None:
    package = quark_packing()
    method = package.create_pack_method("per_group", dtype)
    q, scale, zero, values = quantized(weight(), 4, 32)
    middle = 8 if dtype == "int4" else 0
    numbers = {"weight": q, "weight_zero_point": zero}
    held = {
        name: method.pack(torch.from_numpy(one - middle).int(), order == "reorder")
        for name, one in numbers.items()
    }
    config = quark(order, dtype=dtype, qscheme="per_group", group_size=32)
    found = read(tmp_path, config, held | {"weight_scale": scale.T})
    np.testing.assert_array_equal(found, values.numpy())


@pytest.mark.parametrize(("dtype", "bits"), [("fp4", 4), ("fp6_e2m3", 6)])
def test_quark_floats_in_groups(tmp_path: Path, dtype: str, bits: int) -> None:
    package = quark_packing()
    method = package.create_pack_method("per_group", dtype)
    shape = ROWS, COLUMNS * bits // 8  # all codes are numbers
    packed = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
    packed = packed.to(torch.uint8)
    exponents = torch.randint(110, 130, (ROWS, COLUMNS // 32)).to(torch.uint8)
    spread = (2.0 ** (exponents.float() - 127)).repeat_interleave(32, 1)
    expected = method.unpack(packed, True) * spread
    config = quark(dtype=dtype, qscheme="per_group", group_size=32, scale_format="e8m0")
    found = read(tmp_path, config, {"weight": packed, "weight_scale": exponents})
    np.testing.assert_array_equal(found, expected.float().numpy())
