"""The keys of config.json that every Llama-like decoder reads."""

from __future__ import annotations

from typing import Any

import msgspec


class HfConfig(msgspec.Struct):
    """The keys that every Llama-like decoder reads, with the defaults of transformers' LlamaConfig.

    A key that is null in the file is None here, not the default. A family with additional keys or
    other defaults derives a struct. `rope_parameters`: the rotary keys of all layers, or layer type
    -> the rotary keys of that type.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    mrope_interleaved: bool = False
    original_max_position_embeddings: int | None = None
    is_causal: bool | None = None
