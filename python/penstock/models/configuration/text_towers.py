"""Reads the `text_config` of models that embed texts and images (CLIP, SigLIP)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.hf_encoder import num_encoder_layers
from penstock.models.encoder.spec import Activation, EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.json_file import read_json

_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


class TextConfig(msgspec.Struct):
    """The keys of a `text_config`. The families have defaults for all of them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    vocab_size: int
    hidden_act: str
    layer_norm_eps: float
    projection_size: int | None = None


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None
    padding_side: Literal["left", "right"] | None = None


def read_text_config(path: Path, defaults: Mapping[str, Any]) -> TextConfig:
    """Return the `text_config` of a config.json. Raises ModelError naming the key at fault."""
    given = read_json(path, dict[str, Any]).get("text_config", {})
    if not isinstance(given, dict):
        raise ModelError(f"{path}: text_config must be an object")
    try:
        return msgspec.convert({**defaults, **given}, TextConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: text_config: {error}") from None


def text_encoder_spec(path: Path, config: TextConfig, *, causal: bool) -> EncoderSpec:
    """Return the spec of the encoder. Raises ModelError naming the key at fault."""
    activation = _ACTIVATIONS.get(config.hidden_act)
    if activation is None:
        raise ModelError(
            f"{path}: text_config: hidden_act {config.hidden_act!r} is not supported, known are"
            f" {', '.join(_ACTIVATIONS)}"
        )
    return EncoderSpec(
        architecture="",
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=(0,) * num_encoder_layers(path, config.num_hidden_layers),
        norm_eps=config.layer_norm_eps,
        positions=config.max_position_embeddings,
        pre_norm=True,
        embedding_residual=True,
        causal=causal,
        activation=activation,
    )


def tokenizer_config(folder: Path) -> _TokenizerConfig:
    """Return the keys of tokenizer_config.json that decide how a text is written. Raises
    ModelError."""
    path = folder / "tokenizer_config.json"
    return read_json(path, _TokenizerConfig) if path.exists() else _TokenizerConfig()


TEXT_TOWER_NAMES: Final = EncoderNames(
    word_embeddings="embeddings.token_embedding",
    position_embeddings="embeddings.position_embedding",
    embedding_norm="encoder.layers.0.layer_norm1",
    layer="encoder.layers.{}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    attention_norm="layer_norm2",
    up=("mlp.fc1",),
    down="mlp.fc2",
    next_norm="layer_norm1",
    final_norm="final_layer_norm",
    prefixes=("text_model.",),
    ignored=re.compile(
        r"(vision_model|visual_projection)\..*|logit_scale|logit_bias|.*\.position_ids"
    ),
)
