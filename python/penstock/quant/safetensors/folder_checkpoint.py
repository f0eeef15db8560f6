"""Opens the weights of a Hugging Face folder with any supported quantization method."""

from __future__ import annotations

from pathlib import Path

from penstock.quant.checkpoint import Checkpoint
from penstock.quant.safetensors.float8_checkpoint import Float8Checkpoint, Float8Storage
from penstock.quant.safetensors.integer_checkpoint import IntegerCheckpoint
from penstock.quant.safetensors.mxfp4_checkpoint import Mxfp4Checkpoint
from penstock.quant.safetensors.quantization_config import read_scheme
from penstock.quant.safetensors.quantization_schemes import IntegerScheme, MixedScheme, Mxfp4Scheme
from penstock.quant.safetensors.safetensors_file import SafetensorsFolder
from penstock.quant.safetensors.stacked_experts import stacked_names
from penstock.quant.safetensors.torchao_config import torchao_names

CACHE_SCALES = tuple(
    f".{name}" for name in ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point")
)
"""The ends of the names of tensors that quantize a KV cache: see `cache_scales`."""


def open_checkpoint(folder: Path, float8_storage: Float8Storage) -> Checkpoint:
    """Open the weights of a Hugging Face folder. `float8_storage`: the type in which 8-bit floats
    are stored in memory. Raises ModelError if a file is invalid or its quantization is not
    supported."""
    scheme = read_scheme(folder / "config.json")
    plain = SafetensorsFolder(folder)
    if scheme is None:
        return plain
    plain.leave_out(CACHE_SCALES)
    if isinstance(scheme, Mxfp4Scheme):
        return Mxfp4Checkpoint(plain)
    plain.rename(torchao_names(plain.tensors, folder))
    plain.rename(stacked_names(plain.tensors))
    if isinstance(scheme, IntegerScheme):
        return IntegerCheckpoint(plain, scheme)
    if isinstance(scheme, MixedScheme):
        integers = IntegerCheckpoint(plain, scheme.integers)
        return Float8Checkpoint(integers, scheme.floats, float8_storage)
    return Float8Checkpoint(plain, scheme, float8_storage)
