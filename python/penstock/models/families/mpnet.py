"""MPNet: RoBERTa without token types, with attention biases by relative position."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.models.configuration.family import Family, HfEncoder
from penstock.models.configuration.hf_encoder import require
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.families import bert, roberta
from penstock.quant.json_file import read_json

BUCKETS = 32
PADDING = 1
"""The id of the padding token in all MPNet models."""


class Config(msgspec.Struct):
    """The key of config.json that BERT does not have."""

    relative_attention_num_buckets: int = BUCKETS


def spec(path: Path) -> EncoderSpec:
    """Read the encoder spec from a config.json. Raises ModelError naming a key or value that is not
    supported."""
    buckets = read_json(path, Config).relative_attention_num_buckets
    require(path, "relative_attention_num_buckets", buckets, BUCKETS)
    plain = roberta.with_position_offset(bert.spec(path), PADDING + 1)
    return replace(plain, token_types=0, relative_buckets=buckets)


NAMES = replace(
    bert.NAMES,
    token_type_embeddings="",
    qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    output="attention.attn.o",
    attention_norm="attention.LayerNorm",
    relative="encoder.relative_attention_bias",
    prefixes=("", "mpnet."),
)
FAMILY = Family(hf=HfEncoder("mpnet", "MPNetModel", spec, NAMES, roberta.classifier))
