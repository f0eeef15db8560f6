"""Writes small models of the Gemma families and of Llama 4 as GGUF, in the layout of llama.cpp's
converter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

ARCHITECTURES = {"gemma4_unified_text": "gemma4", "gemma4_text": "gemma4", "gemma2": "gemma2"}
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
    {"gemma2": _add_gemma2, "gemma4": _add_gemma4}[architecture](writer, config)
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
        yield f"{name}.weight" if name.endswith("layer_scalar") else name, values
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
