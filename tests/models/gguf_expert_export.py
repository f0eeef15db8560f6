"""Writes a small transformers model with experts or latent attention as GGUF, in the layout of
llama.cpp's converters. The names come from the `gguf` package."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf_export import interleave

ARCHITECTURES = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "mistral4": "mistral4",
    "glm4_moe": "glm4moe",
    "qwen2_moe": "qwen2moe",
    "phimoe": "phimoe",
    "hunyuan_v1_moe": "hunyuan-moe",
    "ernie4_5_moe": "ernie4_5-moe",
    "olmoe": "olmoe",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
}
LATENT = ("deepseek2", "mistral4")
INTERLEAVED = ("granitemoe",)
"""Architectures whose converters interleave the rows of q and k."""
COUNTS = ("n_routed_experts", "moe_num_experts", "num_experts", "num_local_experts")
PER_TOKEN = ("moe_k", "moe_topk", "num_experts_per_tok")

Tensors = dict[str, np.ndarray]


def export_experts(
    model: Any,
    path: Path,
    kind: str = "F32",
    *,
    joined: bool = False,
    fused: bool = False,
    extra_tensors: Mapping[str, np.ndarray] | None = None,
    extra_keys: Mapping[str, Any] | None = None,
    without: str = "",
) -> None:
    """Write `model` to `path`.

    - `kind`: the type of the matrices; vectors and routers stay F32.
    - `joined`: the keys and values of latent attention are one matrix, as older converters wrote.
    - `fused`: gates and ups of the experts are one tensor.
    - `extra_tensors`, `extra_keys`: are added; keys override metadata of the same name.
    - `without`: a tensor that is left out.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(str(path), architecture)
    keys = {f"{architecture}.{key}": value for key, value in _keys(config, architecture, joined)}
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in (keys | dict(extra_keys or {})).items():
        add[type(value)](key, value)
    tensors = _tensors(model, architecture, joined, fused) | dict(extra_tensors or {})
    tensors.pop(without, None)
    for name, values in tensors.items():
        plain = values.ndim < 2 or "ffn_gate_inp" in name
        number = gguf.GGMLQuantizationType["F32" if plain else kind]
        writer.add_tensor(name, gguf.quants.quantize(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def model_tensors(model: Any) -> Tensors:
    """Return the tensors of `model` under their names in GGUF."""
    return _tensors(model, ARCHITECTURES[model.config.model_type], joined=False, fused=False)


def _keys(config: Any, architecture: str, joined: bool) -> Iterator[tuple[str, Any]]:
    rope = config.rope_parameters
    yield "block_count", config.num_hidden_layers
    yield "context_length", config.max_position_embeddings
    yield "embedding_length", config.hidden_size
    yield "feed_forward_length", config.intermediate_size
    yield "attention.head_count", config.num_attention_heads
    yield "attention.layer_norm_rms_epsilon", config.rms_norm_eps
    yield "rope.freq_base", float(rope["rope_theta"])
    yield "expert_count", _first(config, COUNTS)
    yield "expert_used_count", _first(config, PER_TOKEN)
    for key, name in (("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")):
        if getattr(config, name, None) is not None:
            yield key, getattr(config, name)
    if rope["rope_type"] == "yarn":
        yield "rope.scaling.type", "yarn"
        yield "rope.scaling.factor", rope["factor"]
        yield "rope.scaling.original_context_length", rope["original_max_position_embeddings"]
    if architecture in LATENT:
        yield from _latent_keys(config, joined)
    else:
        yield "attention.head_count_kv", config.num_key_value_heads
        if getattr(config, "head_dim", None):
            yield "attention.key_length", config.head_dim
            yield "attention.value_length", config.head_dim
    if architecture in (*LATENT, "glm4moe"):
        yield from _deepseek_keys(config)
    yield from _own_keys(config, architecture)


def _latent_keys(config: Any, joined: bool) -> Iterator[tuple[str, Any]]:
    rank, rotated = config.kv_lora_rank, config.qk_rope_head_dim
    query = config.qk_nope_head_dim + rotated
    yield "rope.dimension_count", rotated
    yield "attention.kv_lora_rank", rank
    if config.q_lora_rank is not None:
        yield "attention.q_lora_rank", config.q_lora_rank
    if joined:
        yield "attention.head_count_kv", config.num_attention_heads
        yield "attention.key_length", query
        yield "attention.value_length", config.v_head_dim
    else:
        yield "attention.head_count_kv", 1
        yield "attention.key_length", rank + rotated
        yield "attention.value_length", rank
        yield "attention.key_length_mla", query
        yield "attention.value_length_mla", config.v_head_dim
    if config.rope_parameters.get("llama_4_scaling_beta"):
        yield "attention.temperature_scale", config.rope_parameters["llama_4_scaling_beta"]
        length = config.rope_parameters["original_max_position_embeddings"]
        yield "attention.temperature_length", length
    if config.rope_parameters.get("mscale_all_dim"):
        multiplier = 0.1 * config.rope_parameters["mscale_all_dim"]
        yield "rope.scaling.yarn_log_multiplier", multiplier


def _deepseek_keys(config: Any) -> Iterator[tuple[str, Any]]:
    types = getattr(config, "mlp_layer_types", None)
    first = types.index("sparse") if types else config.first_k_dense_replace
    yield "leading_dense_block_count", first
    yield "expert_feed_forward_length", config.moe_intermediate_size
    yield "expert_shared_count", config.n_shared_experts
    yield "expert_weights_scale", config.routed_scaling_factor
    if config.norm_topk_prob:
        yield "expert_weights_norm", True
    yield "expert_gating_func", 1 if config.model_type in ("deepseek_v2", "mistral4") else 2


def _own_keys(config: Any, architecture: str) -> Iterator[tuple[str, Any]]:
    match architecture:
        case "glm4moe":
            yield "rope.dimension_count", config.head_dim // 2
        case "qwen2moe":
            yield "expert_feed_forward_length", config.moe_intermediate_size
            yield "expert_shared_feed_forward_length", config.shared_expert_intermediate_size
        case "phimoe" if "long_factor" in config.rope_parameters:
            original = config.rope_parameters["original_max_position_embeddings"]
            stretch = math.log(config.max_position_embeddings / original) / math.log(original)
            yield "rope.scaling.original_context_length", original
            yield "rope.scaling.attn_factor", math.sqrt(1 + stretch)
        case "hunyuan-moe":
            yield "expert_feed_forward_length", config.intermediate_size
            yield "expert_shared_feed_forward_length", config.intermediate_size
            yield "expert_shared_count", 1
        case "ernie4_5-moe":
            yield "interleave_moe_layer_step", config.moe_layer_interval
            yield "leading_dense_block_count", config.moe_layer_start_index
            yield "expert_feed_forward_length", config.moe_intermediate_size
            yield "expert_shared_count", config.moe_num_shared_experts
            shared = config.moe_num_shared_experts * config.moe_intermediate_size
            yield "expert_shared_feed_forward_length", shared
        case "granitemoe":
            yield "attention.scale", config.attention_multiplier
            yield "embedding_scale", config.embedding_multiplier
            yield "residual_scale", config.residual_multiplier
            yield "logit_scale", config.logits_scaling
            if hasattr(config, "shared_intermediate_size"):
                yield "expert_shared_feed_forward_length", config.shared_intermediate_size


def _tensors(model: Any, architecture: str, joined: bool, fused: bool) -> Tensors:
    config = model.config
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    tensors: Tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = np.squeeze(parameter.float().numpy())
        for part, own in _parts(name, values, config, architecture, joined, fused):
            renamed = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert renamed is not None, part
            tensors[renamed] = np.ascontiguousarray(own)
    for length in ("long", "short"):
        factors = config.rope_parameters.get(f"{length}_factor")
        if factors is not None:
            tensors[f"rope_factors_{length}.weight"] = np.array(factors, np.float32)
    return tensors


def _parts(
    name: str, values: np.ndarray, config: Any, architecture: str, joined: bool, fused: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors that a converter makes of one tensor of transformers, with their names
    before renaming."""
    stem, _, last = name.rpartition(".")
    if architecture in INTERLEAVED and (".q_proj." in name or ".k_proj." in name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        values = interleave(values, heads)
    if name.endswith("experts.gate_up_proj") and not fused:
        for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
            yield f"{_experts(stem, architecture)}.{part}_proj.weight", half
    elif name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        yield f"{_experts(stem, architecture)}.{last}.weight", values
    elif name.endswith("kv_b_proj.weight") and not joined:
        size = config.qk_nope_head_dim + config.v_head_dim
        by_head = values.reshape(config.num_attention_heads, size, -1)
        keys, own = np.split(by_head, [config.qk_nope_head_dim], axis=1)
        yield name.replace("kv_b", "k_b"), keys.swapaxes(1, 2)
        yield name.replace("kv_b", "v_b"), own
    elif name.endswith("shared_mlp.input_linear.weight"):
        layer = stem.removesuffix(".shared_mlp.input_linear")
        for part, half in zip(("gate", "up"), np.split(values, 2), strict=True):
            yield f"{layer}.mlp.shared_experts.{part}_proj.weight", half
    else:
        for old, new in RENAMED.get(architecture, {}).items():
            name = name.replace(old, new)
        yield name, values


RENAMED = {
    "granitemoe": {
        "block_sparse_moe.router": "block_sparse_moe.router.layer",
        "shared_mlp.output_linear": "mlp.shared_experts.down_proj",
    },
    "ernie4_5-moe": {
        "mlp.gate.moe_statics.e_score_correction_bias": "mlp.moe_statics.e_score_correction.bias"
    },
    "deepseek2": {"e_score_correction_bias": "e_score_correction.bias"},
    "mistral4": {"e_score_correction_bias": "e_score_correction.bias"},
    "glm4moe": {"e_score_correction_bias": "e_score_correction.bias"},
    "phimoe": {"mlp.router": "block_sparse_moe.gate"},
}
"""Names of transformers that are not those of the published folders -> names that converters
read."""


def _experts(stem: str, architecture: str) -> str:
    return stem.replace("block_sparse_moe", "mlp")


def _first(config: Any, names: tuple[str, ...]) -> int:
    return next(getattr(config, name) for name in names if getattr(config, name, None) is not None)
