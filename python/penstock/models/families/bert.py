"""BERT: position embeddings, token types, and a norm after each block's residual."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from penstock.models.configuration.family import Family, GgufEncoder, HfEncoder
from penstock.models.configuration.hf_encoder import num_encoder_layers, require
from penstock.models.encoder.classifier import ClassifierSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.encoder.tensor_names import EncoderNames
from penstock.quant.json_file import read_json


class Config(msgspec.Struct):
    """The keys of config.json, with the defaults of transformers' BertConfig."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    position_embedding_type: str | None = "absolute"
    is_decoder: bool | None = False


def spec(path: Path) -> EncoderSpec:
    """Read the encoder spec from a config.json. Raises ModelError naming a key or value that is not
    supported."""
    config = read_json(path, Config)
    require(path, "hidden_act", config.hidden_act, "gelu")
    require(path, "position_embedding_type", config.position_embedding_type, "absolute", None)
    require(path, "is_decoder", config.is_decoder, False, None)
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
        token_types=config.type_vocab_size,
    )


def classifier(_: Path) -> ClassifierSpec:
    """Return the classification head of a reranker, which follows BERT's pooler."""
    return ClassifierSpec("cls", "classifier", dense="bert.pooler.dense")


NAMES = EncoderNames(
    word_embeddings="embeddings.word_embeddings",
    position_embeddings="embeddings.position_embeddings",
    token_type_embeddings="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    layer="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up=("intermediate.dense",),
    down="output.dense",
    mlp_norm="output.LayerNorm",
    prefixes=("", "bert.", "roberta."),
    ignored=re.compile(
        r".*(pooler\.dense\.(weight|bias)|embeddings\.position_ids)|(cls|lm_head)\..*"
    ),
)
FAMILY = Family(
    hf=HfEncoder("bert", "BertModel", spec, NAMES, classifier),
    gguf=GgufEncoder("bert"),
)
