"""A panic of the tokenizers library becomes an error of the model or of the request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import InvalidRequest, ModelError
from penstock.models.tokenizer.tokenizer_data import TokenizerFiles
from penstock.text.tokenizers.backend import build_backend
from penstock.text.tokenizers.panic_guard import encode_or_refuse
from penstock.text.tokenizers.tokenizer_json import read_tokenizer_json
from tests.support.checkpoints.tiny_tokenizer import tiny_data

SPECIAL = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [SPECIAL, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"post_processor": TEMPLATE},
        {"model": None},
    ],
    ids=["while it is read", "while it encodes", "no panic"],
)
def test_broken_tokenizer_is_an_error_of_its_model(tmp_path: Path, parts: dict[str, Any]) -> None:
    content = json.loads(build_backend(tiny_data()).to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | parts))
    with pytest.raises(ModelError, match=rf"{tmp_path}/tokenizer\.json cannot be read"):
        read_tokenizer_json(TokenizerFiles(tmp_path / "tokenizer.json", len(tiny_data().tokens)))


def test_text_on_which_the_library_panics_is_refused() -> None:
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    content = json.loads(build_backend(tiny_data()).to_str())
    content["pre_tokenizer"] = {**pattern, "invert": False}
    backend = build_backend(tiny_data()).from_str(json.dumps(content))
    assert encode_or_refuse(backend, "aaa")
    with pytest.raises(InvalidRequest, match="tokenizer fails"):
        encode_or_refuse(backend, "a" * 40 + "!")
