"""ModernBERT: rotary embedding, gated GELU, norms before each block, and a sliding window in two of
three layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.base.errors import ModelError
from penstock.models.configuration.family import Family, HfEncoder
from penstock.models.configuration.hf_encoder import encoder_rope, num_encoder_layers, require
from penstock.models.configuration.hf_rope import FULL, SLIDING, RopeParameters
from penstock.models.encoder.classifier import ClassifierSpec
from penstock.models.encoder.sentence_transformers import Pooling
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.json_file import read_json

THETAS: Final = {FULL: 160_000.0, SLIDING: 10_000.0}
CLASSIFIER_POOLINGS: Final[dict[str, Pooling]] = {"cls": "cls", "mean": "mean"}


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' ModernBertConfig."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_activation: str = "gelu"
    local_attention: int = 128
    layer_types: list[str] | None = None
    global_attn_every_n_layers: int = 3
    global_rope_theta: float | None = None
    local_rope_theta: float | None = None
    rope_parameters: dict[str, RopeParameters] = {}
    rope_scaling: dict[str, Any] | None = None


class ClassifierConfig(msgspec.Struct):
    """The keys of a reranker's config.json that describe the classification head."""

    norm_eps: float = 1e-5
    norm_bias: bool = False
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"


def spec(path: Path) -> EncoderSpec:
    """Read the encoder spec from a config.json. Raises ModelError naming a key or value that is not
    supported."""
    config = read_json(path, Config)
    require(path, "hidden_activation", config.hidden_activation, "gelu")
    require(path, "rope_scaling", config.rope_scaling, None)
    window = config.local_attention // 2 + 1
    head_dim = config.hidden_size // max(config.num_attention_heads, 1)
    thetas = {FULL: config.global_rope_theta, SLIDING: config.local_rope_theta}
    layer_types = _layer_types(config, path)
    ropes = {
        kind: encoder_rope(path, config.rope_parameters.get(kind), theta or THETAS[kind], head_dim)
        for kind, theta in thetas.items()
    }
    return EncoderSpec(
        architecture="",
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        max_model_len=config.max_position_embeddings,
        windows=tuple(window if kind == SLIDING else 0 for kind in layer_types),
        norm_eps=config.norm_eps,
        rope=ropes[FULL],
        local_rope=ropes[SLIDING],
        pre_norm=True,
        activation="gelu_mul",
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        norm_bias=config.norm_bias,
    )


def _layer_types(config: Config, path: Path) -> list[str]:
    count = num_encoder_layers(path, config.num_hidden_layers)
    period = max(config.global_attn_every_n_layers, 1)
    kinds = config.layer_types or [SLIDING if index % period else FULL for index in range(count)]
    if len(kinds) != count or not {FULL, SLIDING}.issuperset(kinds):
        raise ModelError(f"{path}: layer_types must name {count} of {FULL} and {SLIDING}")
    return kinds


def classifier(path: Path) -> ClassifierSpec:
    """Read the classification head of a reranker from its config.json. Raises ModelError naming the
    key that is not supported."""
    config = read_json(path, ClassifierConfig)
    if config.classifier_activation != "gelu":
        given = config.classifier_activation
        raise ModelError(f"{path}: classifier_activation {given!r} is not supported, only 'gelu'")
    if config.classifier_pooling not in CLASSIFIER_POOLINGS:
        raise ModelError(f"{path}: classifier_pooling {config.classifier_pooling!r} is not known")
    return ClassifierSpec(
        CLASSIFIER_POOLINGS[config.classifier_pooling],
        "classifier",
        dense="head.dense",
        dense_bias=config.classifier_bias,
        activation="gelu",
        norm="head.norm",
        norm_bias=config.norm_bias,
        norm_eps=config.norm_eps,
    )


NAMES = EncoderNames(
    word_embeddings="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    layer="layers.{}.",
    qkv=("attn.Wqkv",),
    output="attn.Wo",
    attention_norm="mlp_norm",
    up=("mlp.Wi",),
    down="mlp.Wo",
    next_norm="attn_norm",
    final_norm="final_norm",
    prefixes=("", "model."),
    ignored=re.compile(r"(head|decoder|classifier)\..*"),
)
FAMILY = Family(hf=HfEncoder("modernbert", "ModernBertModel", spec, NAMES, classifier))
