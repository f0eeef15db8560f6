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
    pixels = {"image_mean": list(mean), "image_std": list(std)}
    for key, value in {**sizes, **pixels, **conversion.keys}.items():
        _add(writer, f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", conversion.eps)
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


PREFIXES = ("model.", "vision_tower.", "vision_model.")
SIGLIP_NAMES = {
    "encoder.layers.": "v.blk.",
    "encoder.layer.": "v.blk.",
    "transformer.layers.": "v.blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.projection_layer": "attn_out",
    "attention.o_proj": "attn_out",
    "layer_norm1": "ln1",
    "layer_norm2": "ln2",
    "layernorm_before": "ln1",
    "layernorm_after": "ln2",
    "attention_norm": "ln1",
    "ffn_norm": "ln2",
    "lambda_1": "ls1.weight",
    "lambda_2": "ls2.weight",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "embeddings.patch_embeddings.projection": "v.patch_embd",
    "embeddings.patch_embedding": "v.patch_embd",
    "patch_conv": "v.patch_embd",
    "embeddings.position_embeddings": "v.position_embd.weight",
    "embeddings.position_embedding": "v.position_embd",
    "embeddings.class_embedding": "v.class_embd",
    "embeddings.cls_token": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
    "ln_pre": "v.pre_ln",
    "post_layernorm": "v.post_ln",
}
INTERNVL_NAMES = {
    "multi_modal_projector.layer_norm": "mm.model.mlp.0",
    "multi_modal_projector.linear_1": "mm.model.mlp.1",
    "multi_modal_projector.linear_2": "mm.model.mlp.3",
}
PROJECTOR_NAMES = {
    "multi_modal_projector.linear_": "mm.",
    "multi_modal_projector.patch_merger.merging_layer": "mm.patch_merger",
    "multi_modal_projector.layer_norm": "mm.input_norm",
    "multi_modal_projector.norm": "mm.input_norm",
    "multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight",
    "multi_modal_projector.mm_soft_emb_norm": "mm.soft_emb_norm",
    "connector.modality_projection.proj": "mm.model.fc",
}
LLAVA_NAMES = {
    "multi_modal_projector.linear_1": "mm.0",
    "multi_modal_projector.linear_2": "mm.2",
}


def convert_images(names: Mapping[str, str], without: str = "") -> Convert:
    """Return the conversion of a tower over tiles. `names`: the names of the projector. `without`:
    tensors with this in their new names are left out."""

    def convert(name: str, data: np.ndarray) -> Tensors:
        if "language_model" in name or "text_model" in name or name == "lm_head.weight":
            return
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        renamed = rename(name, {**names, **SIGLIP_NAMES})
        assert renamed is not None, name
        if not without or without not in renamed:
            yield renamed, data + 1 if "soft_emb_norm" in renamed else data

    return convert


def interleaved(convert: Convert, heads: int) -> Convert:
    """Return `convert` with the halves of each head of q and k in the order of neighbours."""

    def permuted(name: str, data: np.ndarray) -> Tensors:
        for renamed, rows in convert(name, data):
            if ".attn_q." in renamed or ".attn_k." in renamed:
                halves = rows.reshape(heads, 2, -1, *rows.shape[1:])
                rows = halves.swapaxes(1, 2).reshape(rows.shape)
            yield renamed, rows

    return permuted


def swapped_feed_forward(convert: Convert) -> Convert:
    """Return `convert` with the names of the feed-forward's matrices as in old files."""

    def swapped(name: str, data: np.ndarray) -> Tensors:
        other = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
        for renamed, rows in convert(name, data):
            found = next((old for old in other if old in renamed), "")
            yield renamed.replace(found, other.get(found, "")), rows

    return swapped


GEMMA4_NAMES = {
    ".linear.": ".",
    "model.vision_tower.": "",
    "encoder.layers.": "v.blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "ln1",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "ln2",
    "post_feedforward_layernorm": "ffn_post_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "patch_embedder.input_proj": "v.patch_embd",
    "patch_embedder.position_embedding_table": "v.position_embd.weight",
    "model.embed_vision.embedding_projection": "mm.input_projection",
    "std_bias": "v.std_bias",
    "std_scale": "v.std_scale",
}


UNIFIED_NAMES = {
    "model.embed_vision.": "",
    "patch_ln1": "v.patch_norm.1",
    "patch_ln2": "v.patch_norm.2",
    "pos_norm": "v.patch_norm.3",
    "patch_dense": "v.patch_embd",
    "pos_embedding": "v.position_embd.weight",
    "multimodal_embedder.embedding_projection": "mm.input_projection",
}


def convert_gemma4_unified(name: str, data: np.ndarray) -> Tensors:
    """Convert a tensor of Gemma 4 Unified. In the file, a patch has one channel after another, and
    one axis of the positions after the other."""
    renamed = rename(name, UNIFIED_NAMES)
    assert renamed is not None, name
    if "patch_norm.1" in renamed or renamed == "v.patch_embd.weight":
        data = data.reshape(*data.shape[:-1], -1, 3).swapaxes(-1, -2).reshape(data.shape)
    if "position_embd" in renamed:
        data = data.swapaxes(0, 1)
    return ((renamed, data),)


def convert_gemma4(name: str, data: np.ndarray) -> Tensors:
    """Convert a tensor of Gemma 4."""
    renamed = rename(name, GEMMA4_NAMES)
    assert renamed is not None, name
    if renamed == "v.patch_embd.weight":
        side = int((data.shape[1] // 3) ** 0.5)
        data = data.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
    return ((renamed, np.atleast_1d(data)),)
