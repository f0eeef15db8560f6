"""Files that the public packages write are read with the values that the packages dequantize."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from penstock.kernels.weights import Affine, Float8
from penstock.quant.checkpoint import Checkpoint
from penstock.quant.dequantize import dequantize
from penstock.quant.safetensors.folder_checkpoint import open_checkpoint

SHAPE = (64, 256)


def weight(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return (torch.randn(SHAPE, generator=random) * torch.linspace(0.02, 0.4, SHAPE[1])).to(dtype)


def opened(folder: Path, config: dict[str, Any], held: dict[str, torch.Tensor]) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    named = {f"a.{name}": tensor.clone().contiguous() for name, tensor in held.items()}
    save_file(named, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder, "float8")
    assert set(checkpoint.tensors) == {"a.weight"}
    return checkpoint


COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "packed 4 bits": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 64}),
    "packed 4 bits, zero points": (
        "pack-quantized",
        {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False},
    ),
    "packed 3 bits": ("pack-quantized", {"num_bits": 3, "strategy": "group", "group_size": 64}),
    "packed 6 bits, zero points": (
        "pack-quantized",
        {"num_bits": 6, "strategy": "channel", "symmetric": False},
    ),
    "packed 8 bits": ("pack-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int8 of the whole matrix": ("int-quantized", {"num_bits": 8, "strategy": "tensor"}),
    "int8, zero points": (
        "naive-quantized",
        {"num_bits": 8, "strategy": "channel", "symmetric": False},
    ),
    "int4 in bytes": ("int-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "float8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "float8 of the whole matrix": (
        "naive-quantized",
        {"num_bits": 8, "type": "float", "strategy": "tensor"},
    ),
    "float8 in blocks": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 128]},
    ),
    "nvfp4": (
        "nvfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
    ),
    "mxfp4": (
        "mxfp4-pack-quantized",
        {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32},
    ),
    "mxfp6": (
        "mxfp6-pack-quantized",
        {"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32},
    ),
    "mxfp8": (
        "mxfp8-quantized",
        {"num_bits": 8, "type": "float", "strategy": "group", "group_size": 32},
    ),
}


def factors(args: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return scales and zero points for the weight, in the shapes of a strategy."""
    strategy = args["strategy"]
    columns = SHAPE[1]
    height, width = {
        "tensor": SHAPE,
        "channel": (1, columns),
        "block": tuple(args.get("block_structure", ())) or (1, 1),
    }.get(strategy, (1, args.get("group_size")))
    parts = weight().unflatten(1, (-1, width)).unflatten(0, (-1, height))
    low = parts.amin((1, 3)).clamp(max=0)
    high = parts.amax((1, 3)).clamp(min=0)
    bits, symmetric = args["num_bits"], args.get("symmetric", True)
    if args.get("type") == "float":
        largest = {4: 6.0, 6: 7.5, 8: 448.0}[bits]
        scale = torch.maximum(high, -low) / largest
        if strategy == "group":  # MX: powers of two
            return {"weight_scale": 2.0 ** torch.ceil(torch.log2(scale))}
        if strategy == "tensor_group":
            factor = torch.tensor([448 * 6 / float(weight().abs().max())])
            return {"weight_scale": (scale * factor).to(torch.float8_e4m3fn).float()} | {
                "weight_global_scale": factor
            }
        return {"weight_scale": scale.reshape(1) if strategy == "tensor" else scale}
    if symmetric:
        scale = torch.maximum(high, -low) / (2 ** (bits - 1) - 1)
        return {"weight_scale": scale.reshape(1) if strategy == "tensor" else scale}
    scale = ((high - low) / (2**bits - 1)).bfloat16().float()
    zero = (-low / scale).round() - 2 ** (bits - 1)
    return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_tensors(tmp_path: Path, name: str) -> None:
    base = pytest.importorskip("compressed_tensors.compressors.base")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    form, args = COMPRESSED[name]
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    compressor = base.BaseCompressor.get_value_from_registry(form)
    held = compressor.compress({"weight": weight()} | factors(args), scheme)
    group = {"targets": ["Linear"], "weights": args}
    config = {"quant_method": "compressed-tensors", "format": form, "config_groups": {"g": group}}
    given = {key: value for key, value in held.items() if isinstance(value, torch.Tensor)}
    matrix = opened(tmp_path, config, given).matrix("a.weight")
    if args.get("type") == "float" and form.endswith("pack-quantized"):
        # The package multiplies in bfloat16; the same numbers in float32:
        expected = _float4_values(compressor, held, scheme)
    else:
        expected = compressor.decompress(dict(held), scheme)["weight"].float()
    np.testing.assert_array_equal(dequantize(matrix), expected.numpy())
    assert isinstance(matrix, Float8 if name.startswith("float8") else object)


def _float4_values(compressor: Any, held: dict[str, Any], scheme: Any) -> torch.Tensor:
    """Return the package's values with scales of 1, times its scales in float32."""
    ones = held | {"weight_scale": torch.ones_like(held["weight_scale"])}
    if held["weight_scale"].dtype == torch.uint8:
        ones["weight_scale"] = torch.full_like(held["weight_scale"], 127)
    factor = ones.pop("weight_global_scale", torch.ones(1))
    group = scheme.weights.group_size
    values = compressor.decompress(ones, scheme)["weight"].float()
    scale = held["weight_scale"]
    real = 2.0 ** (scale.float() - 127) if scale.dtype == torch.uint8 else scale.float() / factor
    return values * real.repeat_interleave(group, 1)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bitsandbytes_4_bits(tmp_path: Path, kind: str, dtype: torch.dtype, nested: bool) -> None:
    package = pytest.importorskip("bitsandbytes.functional")
    packed, state = package.quantize_4bit(
        weight(dtype), blocksize=64, compress_statistics=nested, quant_type=kind
    )
    held = {f"weight.{name}": one for name, one in state.as_dict(packed=True).items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    matrix = opened(tmp_path, config, held | {"weight": packed}).matrix("a.weight")
    expected = package.dequantize_4bit(packed, state)
    assert expected.dtype == dtype
    np.testing.assert_array_equal(dequantize(matrix), expected.float().numpy())


def test_bitsandbytes_8_bits(tmp_path: Path) -> None:
    package = pytest.importorskip("bitsandbytes.functional")
    q, scale, _ = package.int8_vectorwise_quant(weight(torch.float16))
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    matrix = opened(tmp_path, config, {"weight": q, "SCB": scale.float()}).matrix("a.weight")
    expected = package.int8_vectorwise_dequant(q, scale.float()).numpy()
    assert isinstance(matrix, Affine)
    # The package multiplies by the scale and by 1 / 127, and rounds twice.
    np.testing.assert_array_almost_equal_nulp(dequantize(matrix), expected, nulp=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_hqq(tmp_path: Path, bits: int, axis: int, dtype: torch.dtype) -> None:
    package = pytest.importorskip("hqq.core.quantize")
    config = package.BaseQuantizeConfig(nbits=bits, group_size=64, axis=axis)
    linear = torch.nn.Linear(SHAPE[1], SHAPE[0], bias=False).to(dtype)
    linear.weight.data[:] = weight(dtype)
    layer = package.HQQLinear(linear, config, compute_dtype=dtype, device="cpu")
    held = {name: one for name, one in layer.state_dict().items() if one is not None}
    checkpoint = opened(tmp_path, {"quant_method": "hqq"}, held)
    meta = layer.meta | {"compute_dtype": torch.float32}
    meta |= {name: layer.meta[name].float() for name in ("scale", "zero")}
    exact = package.Quantizer.dequantize(layer.W_q, meta)
    values = dequantize(checkpoint.matrix("a.weight"))
    if axis == 0:
        exact = exact.to(dtype).float()
    # The package subtracts and multiplies in float32, and rounds twice.
    np.testing.assert_allclose(values, exact.numpy(), rtol=2**-7 if axis == 0 else 1e-6, atol=1e-7)
    # In its own type it rounds after the subtraction too.
    rounded = layer.dequantize().float().numpy()
    scale = float(layer.meta["scale"].float().abs().max())
    assert np.abs(values - rounded).max() < scale * 2**bits * 2**-7
