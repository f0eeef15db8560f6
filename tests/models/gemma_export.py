"""Writes small models of the Gemma families and of Llama 4 as GGUF, in the layout of llama.cpp's
converter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

ARCHITECTURES = {
    "gemma2": "gemma2",
    "gemma3n_text": "gemma3n",
    "gemma4_text": "gemma4",
    "gemma4_unified_text": "gemma4",
    "llama4_text": "llama4",
}
SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
"""Names that the converter's map lacks."""
UNNAMED_WEIGHTS = ("layer_scalar", "_scale", ".experts.gate_up_proj", ".experts.down_proj")
"""Endings to which the converter adds `.weight`."""
ALWAYS_F32 = ("ffn_gate_inp", "per_layer_proj_norm", "altup_correct_coef", "altup_predict_coef")


def export(model: Any, path: Path, kind: str = "F32") -> None:
    """Write `model` to `path`. `kind`: the type of the matrices."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    adders = {"gemma2": _add_gemma2, "gemma3n": _add_gemma3n, "gemma4": _add_gemma4}
    adders["llama4"] = _add_llama4
    adders[architecture](writer, config)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, values in _tensors(model, architecture):
        known = name if name.startswith(("blk.", "rope")) else names.get_name(name, (".weight",))
        assert known is not None, name
        plain = values.ndim < 2 or any(part in known for part in ALWAYS_F32)
        own = gguf.GGMLQuantizationType["F32" if plain else kind]
        writer.add_tensor(known, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(model: Any, architecture: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the converter's changes to the tensors of the model."""
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if architecture == "gemma2" and name.endswith("norm.weight"):
            values = values + 1
        for own, shown in SCALES.items():
            if name.endswith(own):
                name = f"blk.{name.split('.')[2]}.{shown}"
        if "altup_projections.0." in name or "altup_unembed_projections.0." in name:
            parts = [name.replace(".0.", f".{index}.") for index in range(3)]
            values = np.stack([model.state_dict()[part].numpy() for part in parts])
            name = name.replace(".0.", ".")
        elif "altup_projections." in name or "altup_unembed_projections." in name:
            continue  # stacked with the first
        if "per_layer." in name and values.shape[0] < model.config.vocab_size:
            missing = model.config.vocab_size - values.shape[0]
            values = np.pad(values, ((0, missing), (0, 0)))
        if architecture == "llama4" and name.endswith("experts.gate_up_proj"):
            prefix = f"blk.{name.split('.')[2]}."
            gate, up = np.split(values.swapaxes(1, 2), 2, axis=1)
            yield f"{prefix}ffn_gate_exps.weight", np.ascontiguousarray(gate)
            yield f"{prefix}ffn_up_exps.weight", np.ascontiguousarray(up)
            continue
        if architecture == "llama4" and name.endswith("experts.down_proj"):
            values = np.ascontiguousarray(values.swapaxes(1, 2))
        adds = name.endswith(UNNAMED_WEIGHTS)
        yield f"{name}.weight" if adds else name, values
    if architecture == "gemma4":
        # Pairs that do not turn have a very large divisor.
        size = model.config.per_layer_config["full_attention"].head_dim
        rope = model.config.rope_parameters["full_attention"]
        turning = int(size * rope["partial_rotary_factor"] / 2)
        yield "rope_freqs.weight", np.where(np.arange(size // 2) < turning, 1, 1e30).astype("f4")


def _add_gemma2(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)


def _add_gemma3n(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = config.rope_parameters
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    writer.add_altup_active_idx(config.altup_active_idx)
    writer.add_altup_num_inputs(config.altup_num_inputs)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    shares = torch.tensor(config.activation_sparsity_pattern)
    writer.add_activation_sparsity_scale(torch.distributions.Normal(0, 1).icdf(shares).tolist())


def _add_llama4(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_feed_forward_length(config.intermediate_size_mlp)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_gemma4(writer: gguf.GGUFWriter, config: Any) -> None:
    layers, shared = config.num_hidden_layers, config.num_kv_shared_layers
    full, local = (config.per_layer_config[f"{kind}_attention"] for kind in ("full", "sliding"))
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    writer.add_rope_freq_base(config.rope_parameters["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(slides)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(
        getattr(config, "hidden_size_per_layer_input", 0) or 0
    )
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(local.head_dim)
    writer.add_value_length_swa(local.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(local.head_dim)
    if getattr(config, "enable_moe_block", False):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.use_double_wide_mlp:
        wide = [config.intermediate_size * (1 + (i >= layers - shared)) for i in range(layers)]
        writer.add_feed_forward_length(wide)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
    heads = (full.num_key_value_heads, local.num_key_value_heads)
    if heads[0] == heads[1]:
        writer.add_head_count_kv(heads[0])
    else:
        writer.add_head_count_kv([heads[own] for own in slides])


def export_assistant(decoder: Any, target_width: int, path: Path) -> None:
    """Write an assistant of Gemma 4 to `path`. `decoder`: its tensors, and the config of its
    decoder."""
    config, layers = decoder.config, decoder.config.num_hidden_layers
    architecture = "gemma4-assistant"
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_block_count(layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    config.final_logit_softcapping = config.final_logit_softcapping or 0.0
    _add_gemma4(writer, config)
    writer.add_uint32(f"{architecture}.nextn_predict_layers", layers)
    writer.add_uint32(f"{architecture}.embedding_length_out", target_width)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, layers)
    for name, values in _tensors(decoder, "gemma4"):
        if name.startswith("masked_embedding"):
            continue
        known = f"nextn.{name}" if "_projection" in name else name
        if name.startswith("model."):
            known = names.get_name(name, (".weight",))
        writer.add_tensor(known, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
