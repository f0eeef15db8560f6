"""Converts the folder of a small hybrid model to GGUF with the layout of llama.cpp's converter.

The names of tensors are those of the `gguf` package. The other facts are those of llama.cpp's
`conversion` package: which keys it writes, and how it reorders and transforms tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

ARCHITECTURES = {
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "lfm2": gguf.MODEL_ARCH.LFM2,
}
Named = Iterator[tuple[str, np.ndarray]]


def convert(folder: Path, path: Path, kind: str = "F32", mtp_layers: int = 0) -> None:
    """Write the model of `folder` to `path`. `kind`: the type of matrices. `mtp_layers`: layers
    that predict further tokens, of random numbers, which the converter appends."""
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    count = config["num_hidden_layers"] + mtp_layers
    write_common_keys(writer, config, count)
    if mtp_layers:
        writer.add_nextn_predict_layers(mtp_layers)
    family = _Delta(config) if "linear_num_key_heads" in config else _ShortConv(config)
    family.keys(writer)
    names = gguf.get_tensor_name_map(arch, count)
    for stored, tensor in load_file(folder / "model.safetensors").items():
        for name, values in family.tensors(stored, tensor):
            new = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert new is not None, name
            add_tensor(writer, new, values, kind)
    for layer in range(config["num_hidden_layers"], count):
        for part in ("attn_norm.weight", "nextn.enorm.weight", "attn_k.weight"):
            add_tensor(writer, f"blk.{layer}.{part}", np.ones((32,), np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_common_keys(writer: gguf.GGUFWriter, config: dict[str, Any], count: int) -> None:
    """Write the keys of every text model."""
    writer.add_block_count(count)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", config.get("norm_eps")))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    """Write a tensor. Vectors, norms, routers and convolutions are float32."""
    plain = values.ndim < 2 or not name.endswith(".weight")
    always = ("_norm.", "ffn_gate_inp", "ssm_conv1d", "shortconv.conv")
    plain |= any(part in name for part in always)
    own = gguf.GGMLQuantizationType["F32" if plain else kind]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), own), raw_dtype=own)


class _Delta:
    """Qwen3.5: heads of values are tiled if there are fewer heads of keys."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.groups: int = config["linear_num_key_heads"]
        self.heads: int = config["linear_num_value_heads"]
        self.key_dim: int = config["linear_key_head_dim"]
        self.value_dim: int = config["linear_value_head_dim"]

    def keys(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(self.key_dim)
        writer.add_ssm_group_count(self.groups)
        writer.add_ssm_time_step_rank(self.heads)
        writer.add_ssm_inner_size(self.value_dim * self.heads)
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
        factor = config["rope_parameters"]["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(config["head_dim"] * factor))

    def tensors(self, name: str, values: np.ndarray) -> Named:
        if "linear_attn." in name and self.groups != self.heads:
            values = self._tiled(name, values)
        if name.endswith(".A_log"):
            values = -np.exp(values)
        elif name.endswith(".dt_bias"):
            name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
        elif "conv1d" in name:
            values = values.squeeze()
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        yield name, values

    def _tiled(self, name: str, values: np.ndarray) -> np.ndarray:
        keys = 2 * self.key_dim * self.groups
        if ".in_proj_qkv." in name or ".conv1d." in name:
            values = values.squeeze()
            return np.concatenate([values[:keys], self._tile(values[keys:], self.value_dim)])
        if ".in_proj_z." in name:
            return self._tile(values, self.value_dim)
        if any(part in name for part in (".in_proj_b.", ".in_proj_a.", ".A_log", ".dt_bias")):
            return self._tile(values, 1)
        if ".out_proj." in name:
            return self._tile(values.T, self.value_dim).T
        return values

    def _tile(self, values: np.ndarray, size: int) -> np.ndarray:
        """Order the heads, in the first dimension, by their number in the group, then by group."""
        by_group = values.reshape(self.groups, self.heads // self.groups, size, -1)
        return by_group.swapaxes(0, 1).reshape(values.shape)


class _ShortConv:
    """LFM2: layers without attention have no KV heads."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config

    def keys(self, writer: gguf.GGUFWriter) -> None:
        config, key = self.config, gguf.Keys.Attention.HEAD_COUNT_KV.format(arch=writer.arch)
        heads = config["num_key_value_heads"]
        writer.kv_data[0].pop(key)
        writer.add_head_count_kv([0 if kind == "conv" else heads for kind in config["layer_types"]])
        writer.add_vocab_size(config["vocab_size"])
        writer.add_shortconv_l_cache(config["conv_L_cache"])

    def tensors(self, name: str, values: np.ndarray) -> Named:
        yield name, values.squeeze(1) if "conv.conv" in name else values
