"""Writes the tower of a small model as an `mmproj` GGUF file, in the layout of llama.cpp's
converter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Tensors = Iterable[tuple[str, np.ndarray]]
Convert = Callable[[str, np.ndarray], Tensors]
QUANTIZED = {
    "f32": gguf.GGMLQuantizationType.F32,
    "f16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
}
TYPES = tuple(QUANTIZED)


@dataclass(frozen=True)
class Conversion:
    """The rules of one family.

    - `projector`: `clip.projector_type`.
    - `convert`: tensor of the folder -> tensors of the file, none if it is left out.
    - `keys`: further keys without `clip.vision.`.
    - `flags`: keys without `clip.` that are true.
    - `eps`: `attention.layer_norm_epsilon`.
    """

    projector: str
    convert: Convert
    keys: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    eps: float = 1e-6


def export(
    path: Path,
    conversion: Conversion,
    sizes: Mapping[str, int],
    tensors: Mapping[str, np.ndarray],
    kind: str = "f32",
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073),
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711),
) -> Path:
    """Write `tensors` of a folder to `path`. `sizes`: the keys that all files have, without
    `clip.vision.`. `kind`: the type of the matrices; others are float32, patches at most float16.
    """
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(conversion.projector)
    for flag in conversion.flags:
        writer.add_bool(f"clip.{flag}", True)
    for key, value in {**sizes, **conversion.keys}.items():
        _add(writer, f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", conversion.eps)
    writer.add_array("clip.vision.image_mean", list(mean))
    writer.add_array("clip.vision.image_std", list(std))
    for name, tensor in tensors.items():
        for renamed, data in conversion.convert(name, tensor):
            _add_tensor(writer, renamed, np.ascontiguousarray(data, np.float32), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, (list, tuple)):
        writer.add_array(key, list(value))
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_uint32(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: np.ndarray, kind: str) -> None:
    if data.ndim == 1 or "position_embd" in name or ".norm" in name:
        kind = "f32"
    elif data.ndim > 2 or "patch_embd" in name:
        kind = "f16" if kind in ("f16", "q8_0") else "f32"
    if kind == "q8_0" and data.shape[-1] % 32:
        kind = "f16"
    quantized = QUANTIZED[kind]
    writer.add_tensor(name, gguf.quants.quantize(data, quantized), raw_dtype=quantized)


def rename(name: str, pairs: Mapping[str, str]) -> str | None:
    """Return `name` with each key of `pairs` replaced, or None if no key occurs in it."""
    renamed = name
    for old, new in pairs.items():
        renamed = renamed.replace(old, new)
    return None if renamed == name else renamed


def split_qkv(name: str, data: np.ndarray) -> Tensors:
    """Yield q, k and v of a fused tensor."""
    for part, rows in zip("qkv", np.split(data, 3), strict=True):
        yield name.replace("attn_qkv", f"attn_{part}"), rows


QWEN2_NAMES = {
    "blocks.": "v.blk.",
    "norm1": "ln1",
    "norm2": "ln2",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
    "merger.ln_q": "v.post_ln",
    "merger.mlp.": "mm.",
    "merger.norm": "v.post_ln",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
    "pos_embed": "v.position_embd",
    "patch_embed.proj": "v.patch_embd",
}


def qwen_patches(data: np.ndarray) -> Tensors:
    """Yield the kernels of both frames."""
    yield "v.patch_embd.weight", data[:, :, 0]
    yield "v.patch_embd.weight.1", data[:, :, 1]


def convert_qwen2(name: str, data: np.ndarray) -> Tensors:
    """Convert a tensor of Qwen2-VL or Qwen2.5-VL."""
    renamed = rename(name, QWEN2_NAMES)
    assert renamed is not None, name
    if data.ndim == 5:
        return qwen_patches(data)
    return split_qkv(renamed, data) if "attn_qkv" in renamed else ((renamed, data),)


def convert_qwen3(deep: tuple[int, ...]) -> Convert:
    """Return the conversion of Qwen3-VL with DeepStack after the layers `deep`."""
    lists = {f"deepstack_merger_list.{index}.": f"v.deepstack.{layer}."
             for index, layer in enumerate(deep)}  # fmt: skip

    def convert(name: str, data: np.ndarray) -> Tensors:
        own = rename(name, lists)
        renamed = rename(name, QWEN2_NAMES) if own is None else own.replace("linear_", "")
        assert renamed is not None, name
        return qwen_patches(data) if data.ndim == 5 else ((renamed, data),)

    return convert
