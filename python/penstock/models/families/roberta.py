"""RoBERTa: BERT whose positions start at the id of the padding token plus 1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec

from penstock.models.configuration.family import Family, HfEncoder
from penstock.models.encoder.classifier import ClassifierSpec
from penstock.models.encoder.spec import EncoderSpec
from penstock.models.families import bert
from penstock.quant.json_file import read_json


class Config(msgspec.Struct):
    """The key of config.json that BERT does not have."""

    pad_token_id: int | None = 1


def spec(path: Path) -> EncoderSpec:
    """Read the encoder spec from a config.json. Raises ModelError naming a key or value that is not
    supported."""
    padding = read_json(path, Config).pad_token_id or 0
    return with_position_offset(bert.spec(path), padding + 1)


def with_position_offset(plain: EncoderSpec, offset: int) -> EncoderSpec:
    """Return `plain` with position p stored in row p + `offset` of the position embeddings."""
    return replace(plain, position_offset=offset, max_model_len=plain.positions - offset)


def classifier(_: Path) -> ClassifierSpec:
    """Return the classification head of a reranker."""
    return ClassifierSpec("cls", "classifier.out_proj", dense="classifier.dense")


FAMILY = Family(hf=HfEncoder("roberta", "RobertaModel", spec, bert.NAMES, classifier))
