"""Converts the folder of a small hybrid model to GGUF with the layout of llama.cpp's converter.

The names of tensors are those of the `gguf` package. The other facts are those of llama.cpp's
`conversion` package: which keys it writes, and how it reorders and transforms tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf_export import interleave
from safetensors.numpy import load_file

ARCHITECTURES = {
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "granitemoehybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "falcon_h1": gguf.MODEL_ARCH.FALCON_H1,
    "nemotron_h": gguf.MODEL_ARCH.NEMOTRON_H,
}
Named = Iterator[tuple[str, np.ndarray]]


def convert(
    folder: Path,
    path: Path,
    kind: str = "F32",
    mtp_layers: int = 0,
    changed_keys: Mapping[str, Any] = MappingProxyType({}),
    without: tuple[str, ...] = (),
) -> None:
    """Write the model of `folder` to `path`.

    - `kind`: the type of matrices.
    - `mtp_layers`: layers that predict further tokens, which the converter appends. If the folder
      has no MTP head, they have a few tensors of ones.
    - `changed_keys`: keys with other values than the converter writes.
    - `without`: keys that are left out, without the architecture's prefix.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = ARCHITECTURES[config["model_type"]]
    if arch == gguf.MODEL_ARCH.NEMOTRON_H and "moe" in config["layers_block_type"]:
        arch = gguf.MODEL_ARCH.NEMOTRON_H_MOE
    writer = gguf.GGUFWriter(str(path), gguf.MODEL_ARCH_NAMES[arch])
    config.setdefault("num_hidden_layers", len(config.get("layers_block_type", ())))
    count = config["num_hidden_layers"] + mtp_layers
    write_common_keys(writer, config, count)
    if mtp_layers:
        writer.add_nextn_predict_layers(mtp_layers)
    family = FAMILIES[config["model_type"]](config)
    family.keys(writer)
    for key, value in changed_keys.items():
        writer.kv_data[0].pop(key, None)
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(key, value)
    for key in without:
        del writer.kv_data[0][f"{writer.arch}.{key}"]
    names = gguf.get_tensor_name_map(arch, count)
    layers, has_head = config["num_hidden_layers"], False
    for stored, tensor in merged_experts(load_file(folder / "model.safetensors")):
        has_head |= stored.startswith("mtp.")
        for name, values in family.tensors(_mtp_name(stored, layers), tensor):
            new = _NEXTN.get(name.removeprefix(f"model.layers.{layers}."))
            if new is not None:
                add_tensor(writer, f"blk.{layers}.nextn.{new}", values, kind)
                continue
            new = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert new is not None, name
            add_tensor(writer, new, values, kind)
    for layer in () if has_head else range(layers, count):
        for part in ("attn_norm.weight", "nextn.enorm.weight", "attn_k.weight"):
            add_tensor(writer, f"blk.{layer}.{part}", np.ones((32,), np.float32), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_NEXTN = {
    "eh_proj.weight": "eh_proj.weight",
    "enorm.weight": "enorm.weight",
    "hnorm.weight": "hnorm.weight",
    "shared_head.norm.weight": "shared_head_norm.weight",
}
_MTP = {
    "mtp.fc.weight": "eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "hnorm.weight",
    "mtp.norm.weight": "shared_head.norm.weight",
}


def _mtp_name(name: str, layers: int) -> str:
    """Return the name of a tensor of an MTP head as if it were one of layer `layers`."""
    if name in _MTP:
        return f"model.layers.{layers}.{_MTP[name]}"
    return name.replace("mtp.layers.0.", f"model.layers.{layers}.")


def write_common_keys(writer: gguf.GGUFWriter, config: dict[str, Any], count: int) -> None:
    """Write the keys of every text model."""
    writer.add_block_count(count)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config.get("rope_parameters", {})
    if "rope_theta" in rope:
        writer.add_rope_freq_base(rope["rope_theta"])
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    keys = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")
    writer.add_layer_norm_rms_eps(next(config[key] for key in keys if key in config))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def merged_experts(tensors: dict[str, np.ndarray]) -> Named:
    """Yield tensors, with those of the experts of a layer joined to one."""
    experts: dict[str, list[np.ndarray]] = {}

    def numbers(name: str) -> list[int]:
        return [int(part) for part in name.split(".") if part.isdigit()]

    for name in sorted(tensors, key=numbers):
        block, found, rest = name.partition(".experts.")
        if not found:
            yield name, tensors[name]
            continue
        experts.setdefault(f"{block}.experts.{rest.partition('.')[2]}", []).append(tensors[name])
    for name, stack in experts.items():
        yield name, np.stack(stack)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    """Write a tensor. Vectors, norms, routers and convolutions are float32."""
    plain = values.ndim < 2 or not name.endswith(".weight")
    always = ("_norm.", "ffn_gate_inp", "ssm_conv1d", "shortconv.conv")
    plain |= any(part in name for part in always)
    own = gguf.GGMLQuantizationType["F32" if plain else kind]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values), own), raw_dtype=own)


class _Delta:
    """Qwen3.5 and Qwen3-Next. The heads of values of Qwen3.5 are tiled if there are fewer heads of
    keys. The joint projection of Qwen3-Next is divided, but not that of b and a."""

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
        if "moe_intermediate_size" in config:
            writer.add_expert_count(config["num_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])

    def tensors(self, name: str, values: np.ndarray) -> Named:
        if "in_proj_qkvz.weight" in name:
            layer = name.split(".")[2]
            qkv, z = self._divided(values)
            yield f"model.layers.{layer}.linear_attn.in_proj_qkv.weight", qkv
            yield f"model.layers.{layer}.linear_attn.in_proj_z.weight", z
            return
        tiled = self.config["model_type"] != "qwen3_next" and self.groups != self.heads
        if "linear_attn." in name and tiled:
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

    def _divided(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of queries, keys and values, and those of z."""
        per = self.heads // self.groups * self.value_dim
        by_group = values.reshape(self.groups, -1, values.shape[1])
        parts = np.split(by_group, np.cumsum([self.key_dim, self.key_dim, per]), axis=1)
        q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
        return np.concatenate([q, k, v]), z

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
        if "num_experts" in config:
            writer.add_expert_count(config["num_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
            writer.add_leading_dense_block_count(config["num_dense_layers"])
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    def tensors(self, name: str, values: np.ndarray) -> Named:
        if name.endswith(".expert_bias"):
            name += ".bias"
        if ".experts." in name:
            name = name.removeprefix("model.")
        yield name, values.squeeze(1) if "conv.conv" in name else values


class _Mamba:
    """Granite 4 and Falcon-H1: matrices of heads and of groups, and -exp(A_log)."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.groups: int = config["mamba_n_groups"]

    def keys(self, writer: gguf.GGUFWriter) -> None:
        config = self.config
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(self.groups)
        writer.add_ssm_inner_size(config["mamba_n_heads"] * config["mamba_d_head"])
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])

    def tensors(self, name: str, values: np.ndarray) -> Named:
        if name.endswith(".dt_bias"):
            name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
        elif "conv1d.weight" in name:
            values = values.squeeze()
        elif name.endswith((".A_log", ".D")):
            values = values.reshape(-1, 1)
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            values = values.reshape(self.groups, -1)
        yield name, -np.exp(values) if name.endswith(".A_log") else values


class _Granite(_Mamba):
    """Rows of q and k in the order of neighbours, and gates apart from ups."""

    def keys(self, writer: gguf.GGUFWriter) -> None:
        super().keys(writer)
        config = self.config
        attends = [kind == "full_attention" for kind in config["layer_types"]]
        heads = config["num_key_value_heads"]
        writer.kv_data[0].pop(gguf.Keys.Attention.HEAD_COUNT_KV.format(arch=writer.arch))
        writer.add_head_count_kv([heads if own else 0 for own in attends])
        writer.add_rope_scaling_finetuned(all(attends))
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])

    def tensors(self, name: str, values: np.ndarray) -> Named:
        config, sparse = self.config, self.config["num_local_experts"] > 0
        for part in ("q", "k"):
            if f".{part}_proj." in name:
                heads = "num_attention_heads" if part == "q" else "num_key_value_heads"
                values = interleave(values, config[heads])
        if not name.endswith(("_linear.weight",)):
            yield from super().tensors(name, values)
            return
        layer = ".".join(name.split(".")[:3])
        block = "mlp.experts" if "block_sparse_moe" in name else "mlp.shared_expert"
        if block == "mlp.shared_expert" and not sparse:
            block = "mlp"
        if name.endswith("output_linear.weight"):
            yield f"{layer}.{block}.down_proj.weight", values
            return
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=-2), strict=True):
            yield f"{layer}.{block}.{part}_proj.weight", half


class _Falcon(_Mamba):
    """Weights multiplied by the factors."""

    def tensors(self, name: str, values: np.ndarray) -> Named:
        config = self.config
        ssm = np.array(config["ssm_multipliers"], np.float32) * config["ssm_in_multiplier"]
        inner, state = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        sizes = [inner, inner, state, state, config["mamba_n_heads"]]
        attention_in = config["attention_in_multiplier"]
        factors = {
            "down_proj": config["mlp_multipliers"][1],
            "gate_proj": config["mlp_multipliers"][0],
            "k_proj": config["key_multiplier"] * attention_in,
            "q_proj": attention_in,
            "v_proj": attention_in,
            "o_proj": config["attention_out_multiplier"],
            "out_proj": config["ssm_out_multiplier"],
            "in_proj": np.repeat(ssm, sizes)[:, None],
            "lm_head": config["lm_head_multiplier"],
            "embed_tokens": config["embedding_multiplier"],
        }
        for part, factor in factors.items():
            if f".{part}." in f".{name}":
                values = values * np.float32(factor)
        yield from super().tensors(name, values)


class _Nemotron(_Mamba):
    """One block per layer, which the arrays of KV heads and of feed-forward lengths tell."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.groups = config["n_groups"]

    def keys(self, writer: gguf.GGUFWriter) -> None:
        config, kinds = self.config, self.config["layers_block_type"]
        for key in (gguf.Keys.Attention.HEAD_COUNT_KV, gguf.Keys.LLM.FEED_FORWARD_LENGTH):
            writer.kv_data[0].pop(key.format(arch=writer.arch))
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        heads = config["num_key_value_heads"]
        writer.add_head_count_kv([heads if kind == "full_attention" else 0 for kind in kinds])
        writer.add_ssm_conv_kernel(config["conv_kernel"])
        writer.add_ssm_state_size(config["ssm_state_size"])
        writer.add_ssm_group_count(self.groups)
        writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
        writer.add_ssm_time_step_rank(config["mamba_num_heads"])
        writer.add_rope_scaling_finetuned(False)
        sparse = "moe" in kinds
        length = config["moe_intermediate_size" if sparse else "intermediate_size"]
        writer.add_feed_forward_length([length if kind in ("moe", "mlp") else 0 for kind in kinds])
        if not sparse:
            return
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_count(config["n_routed_experts"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_group_count(config["n_group"])

    def tensors(self, name: str, values: np.ndarray) -> Named:
        for part in ("q", "k"):
            if f".{part}_proj." in name:
                heads = "num_attention_heads" if part == "q" else "num_key_value_heads"
                values = interleave(values, self.config[heads])
        if ".mixer.experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        yield from super().tensors(name, values)


FAMILIES: dict[str, Any] = {
    "qwen3_5_text": _Delta,
    "qwen3_5_moe_text": _Delta,
    "qwen3_next": _Delta,
    "lfm2": _ShortConv,
    "lfm2_moe": _ShortConv,
    "granitemoehybrid": _Granite,
    "falcon_h1": _Falcon,
    "nemotron_h": _Nemotron,
}
