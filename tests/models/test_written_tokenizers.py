"""Tokenizers of folders in GGUF files give the same tokens; others are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from test_gguf_models import small_model
from tokenized_folders import CORPUS, SIZES, write_byte_level, write_sentencepiece
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from penstock.base.errors import ModelError
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_text_parts
from penstock.quantizing.quantize_model import Job, quantize_model
from penstock.text import load_tokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer as Loaded

VOCAB = 400
TEXTS = [
    *("in 2024 it's 12345 don't", "<s> a  b\n\n\tc<end>", "caf\u00e9 \u65e5\u672c \U0001f600"),
    *("", " ", "the year", "  the  year  ", "<unk>x", "<0x41>", "the\u2581year"),
    *CORPUS[:3],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_model("Llama", **(SIZES | {"vocab_size": VOCAB})).save_pretrained(tmp_path / "in")
    return tmp_path / "in"


def written(folder: Path) -> Path:
    output = folder.with_name("out.gguf")
    job = Job(ModelFiles("tiny", "folder", folder), output, "Q8_0")
    quantize_model(job, lambda done, total: None)
    return output


def both(folder: Path) -> tuple[Loaded, Loaded]:
    """Return the tokenizer of the folder and that of its GGUF file."""
    files = ModelFiles("tiny", "folder", folder), ModelFiles("out", "gguf", written(folder))
    own, other = (load_tokenizer(load_text_parts(one)) for one in files)
    return own, other


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_goes_into_the_gguf_file(folder: Path, prefix: bool) -> None:
    write_sentencepiece(folder, prefix)
    own, other = both(folder)
    for text in TEXTS:
        assert other.encode(text) == own.encode(text), text
        assert other.encode(text, add_special=True) == own.encode(text, add_special=True)
        assert other.decode(own.encode(text)) == own.decode(own.encode(text))
    fields = gguf.GGUFReader(folder.with_name("out.gguf")).fields
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"].contents() is prefix
    assert kinds[:4] == [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, gguf.TokenType.BYTE]
    assert kinds[-1] == gguf.TokenType.UNUSED  # a row of the embedding without a token


@pytest.mark.parametrize("split", ["qwen2", "llama-bpe", "tekken", "qwen35", "gpt-4o"])
def test_the_pre_tokenizer_is_found_by_its_tokens(folder: Path, split: str) -> None:
    write_byte_level(folder, split)
    own, other = both(folder)
    assert all(other.encode(text) == own.encode(text) for text in TEXTS)


def test_tokens_that_end_a_turn_are_kept(folder: Path) -> None:
    write_byte_level(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 7]}))
    parts = load_text_parts(ModelFiles("out", "gguf", written(folder)))
    assert parts.stop_ids == (1, 7)


def test_templates_are_kept(folder: Path) -> None:
    write_byte_level(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "{{ messages }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    parts = load_text_parts(ModelFiles("out", "gguf", written(folder)))
    assert (parts.chat_template, parts.tool_template) == ("{{ messages }}", "{{ tools }}")


def unusual_merges() -> Tokenizer:
    """SentencePiece would join a and bc, which are no merge here."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc", "ab", "bc", "abc"]
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [("b", "c"), ("a", "b"), ("ab", "c")]
    return Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))


def unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0))


def without_bytes() -> Tokenizer:
    return Tokenizer(models.BPE({"<unk>": 0, "a": 1, "b": 2}, [], unk_token="<unk>"))


def other_split() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([*alphabet, "ee", "eee"])}
    tokenizer = Tokenizer(models.BPE(vocab, [("e", "e"), ("ee", "e")]))
    steps: list[Any] = [pre_tokenizers.Split(Regex("."), "isolated")]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (unusual_merges, "the order of its merges is not that of scores"),
        (unigram, "type 'Unigram' is not written"),
        (without_bytes, "BPE without bytes for unknown characters"),
        (other_split, "the pre-tokenizer is none of"),
    ],
)
def test_other_tokenizers_are_refused_by_name(folder: Path, make: Any, says: str) -> None:
    make().save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelError, match=says):
        written(folder)
    assert sorted(file.name for file in folder.parent.iterdir()) == ["in"]
