"""Tokenizers from GGUF metadata and tokenizer.json: merges, bytes, control tokens, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import ModelError
from penstock.dialog import Sampling
from penstock.models.tokenizer.tokenizer_data import (
    TextParts,
    TokenizerData,
    TokenizerFiles,
    TokenizerSource,
)
from penstock.text import load_tokenizer
from penstock.text.tokenizers.backend import build_backend
from penstock.text.tokenizers.tokenizer import from_gguf
from tests.support.checkpoints.tiny_tokenizer import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    tiny_data,
    tiny_tokenizer,
)


def parts(tokenizer: TokenizerSource, bos: str | None = None, eos: str | None = None) -> TextParts:
    return TextParts("m", "f", tokenizer, None, bos, eos, (), Sampling(), 128, 300)


def spm_data(**changes: object) -> TokenizerData:
    """A SentencePiece vocabulary in which scores decide: "ab" is merged before "bc"."""
    pieces = ["<unk>", "<s>", "</s>"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "a", "b", "c", "ab", "bc", "▁a", "abc", "▁ab"]
    types = [2, 3, 3] + [6] * 256 + [1] * 9
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, -4.0, -5.0]
    fields: dict[str, object] = {
        "model": "llama",
        "pre": "default",
        "tokens": pieces,
        "token_types": types,
        "scores": scores,
        "merges": [],
        "bos_id": 1,
        "eos_id": 2,
        "unknown_id": 0,
    }
    fields.update(changes)
    return TokenizerData(**fields)  # type: ignore[arg-type]


def test_byte_level_merges_in_order_and_knows_control_tokens() -> None:
    tokenizer = tiny_tokenizer()
    the, ing = 260, 263
    assert tokenizer.encode("the") == [the]
    assert tokenizer.encode("ing<|im_end|>") == [ing, IM_END]
    assert tokenizer.encode("é") == [0xC3, 0xA9]


@given(st.text())
def test_bytes_of_tokens_concatenate_to_the_text(text: str) -> None:
    tokenizer = TINY
    ids = tokenizer.encode(text)
    if not any(i in tokenizer.control_ids for i in ids):
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.decode(ids) == text


TINY = tiny_tokenizer()


def test_stop_ids_contain_eos_and_every_end_of_turn() -> None:
    assert tiny_tokenizer(eos_id=None).stop_ids == {END_OF_TEXT, IM_END}
    assert from_gguf(tiny_data(), stop_ids=[7]).stop_ids == {END_OF_TEXT, IM_END, 7}
    assert IM_START not in TINY.stop_ids


def test_bos_is_added_only_if_the_file_or_the_family_says_so() -> None:
    assert tiny_tokenizer().encode("the", add_special=True) == [260]
    assert tiny_tokenizer(add_bos=True).encode("the", add_special=True) == [END_OF_TEXT, 260]
    assert tiny_tokenizer(pre="llama-bpe").encode("the", add_special=True) == [END_OF_TEXT, 260]
    assert tiny_tokenizer(add_bos=True).encode("the") == [260]
    both = tiny_tokenizer(add_bos=True, add_eos=True)
    assert both.encode("", add_special=True) == [END_OF_TEXT, IM_END]


def test_bytes_of_control_tokens_are_their_names_and_padding_has_none() -> None:
    assert TINY.token_bytes(IM_END) == b"<|im_end|>"
    assert TINY.token_bytes(0x0A) == b"\n"
    assert TINY.token_bytes(100_000) == b""
    assert TINY.decode([260, IM_END]) == "the"


def test_lone_surrogates_are_read_as_replacement_characters() -> None:
    assert TINY.encode("a\ud800b") == TINY.encode("a�b")


def test_pieces_are_not_joined_to_a_control_token() -> None:
    ids = TINY.encode_pieces(["<", "|im_end|>", "<|im_end|>"])
    assert ids.count(IM_END) == 1
    assert b"".join(map(TINY.token_bytes, ids)) == b"<|im_end|><|im_end|>"


@pytest.mark.parametrize(
    ("pre", "text", "same"),
    [
        ("smollm", "7  8", ["7", "  ", "8"]),
        ("gpt-2", "7  8", ["7", " ", " 8"]),
        ("llama-bpe", "12345'LL", ["123", "45", "'LL"]),
        ("qwen2", "12\n\n x", ["1", "2", "\n\n", " x"]),
        ("qwen2", "e\u0301", ["é"]),
        ("gpt-4o", "fooBar's", ["foo", "Bar's"]),
        ("tekken", "fooBar12", ["foo", "Bar", "1", "2"]),
        ("deepseek-v3", "1234你好", ["123", "4", "你好"]),
        ("dbrx", "1234 a!\n", ["123", "4", " a", "!\n"]),
        ("glm4", "1234 a!\n", ["123", "4", " a", "!\n"]),
        ("chatglm-bpe", "1234 a!\n", ["123", "4", " a", "!\n"]),
        ("deepseek-llm", "abƻ 12你好!", ["ab", "ƻ ", "1", "2", "你好", "!"]),
        ("kimi-k2", "Hi你好 there's1234", ["Hi", "你好", " there's", "123", "4"]),
        ("hunyuan", "12 e\u0301", ["1", "2", " e", "\u0301"]),
        ("hunyuan-dense", "1234你好", ["123", "4", "你好"]),
        ("seed-coder", "12 a!\n", ["1", "2", " a", "!", "\n"]),
    ],
)
def test_pre_tokenizers_split_like_their_models(pre: str, text: str, same: list[str]) -> None:
    backend = build_backend(tiny_data(pre=pre))
    normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
    pieces = [normal[a:b] for _, (a, b) in backend.pre_tokenizer.pre_tokenize_str(normal)]
    assert pieces == same


def test_sentencepiece_merges_by_score() -> None:
    tokenizer = from_gguf(spm_data())
    tokens = spm_data().tokens
    assert [tokens[i] for i in tokenizer.encode("abc")] == ["▁", "abc"]
    assert [tokens[i] for i in tokenizer.encode("bcab")] == ["▁", "bc", "ab"]
    rarer = [*spm_data().scores[:-2], -6.0, -5.0]
    assert [tokens[i] for i in from_gguf(spm_data(scores=rarer)).encode("abc")] == ["▁ab", "c"]


def test_sentencepiece_falls_back_to_bytes_and_prefixes_a_space() -> None:
    tokenizer = from_gguf(spm_data())
    ids = tokenizer.encode(" é", add_special=True)
    assert ids[0] == 1
    assert b"".join(map(tokenizer.token_bytes, ids[1:])) == "  é".encode()
    assert tokenizer.decode(ids) == " é"
    plain = from_gguf(spm_data(add_space_prefix=False))
    assert b"".join(map(plain.token_bytes, plain.encode("é"))) == "é".encode()


def test_sentencepiece_pieces_get_no_prefix_space_inside_a_text() -> None:
    tokenizer = from_gguf(spm_data())
    assert tokenizer.decode(tokenizer.encode_pieces(["x", "yz"])) == "xyz"
    assert tokenizer.decode(tokenizer.encode_pieces(["x", "ab", "", " ab"])) == "xab ab"


def test_the_unknown_token_is_a_control_token() -> None:
    tokenizer = from_gguf(spm_data())
    assert tokenizer.encode("ab<unk>")[1:] == [0]
    assert tokenizer.decode([*tokenizer.encode("ab"), 0]) == "ab"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (tiny_data(model="wordpiece"), "tokenizer.ggml.model"),
        (tiny_data(pre="unheard-of"), "tokenizer.ggml.pre"),
        (tiny_data(pre=None), "tokenizer.ggml.pre"),
        (tiny_data(merges=[]), "tokenizer.ggml.merges"),
        (tiny_data(merges=["nopair"]), "tokenizer.ggml.merges"),
        (tiny_data(merges=["q zzz"]), "tokenizer.ggml.merges"),
        (tiny_data(token_types=[1]), "tokenizer.ggml.token_type"),
        (spm_data(scores=[]), "tokenizer.ggml.scores"),
    ],
)
def test_invalid_metadata_is_refused_by_key(data: TokenizerData, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        from_gguf(data)


def test_tokenizer_json_gives_the_same_ids_as_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    build_backend(tiny_data()).save(str(path))
    loaded = load_tokenizer(parts(TokenizerFiles(path, 300), "<|endoftext|>", "<|im_end|>"))
    text = "<|im_start|>the thing\n é"
    assert loaded.encode(text) == TINY.encode(text)
    assert loaded.bos_id == END_OF_TEXT and loaded.eos_id == IM_END
    assert loaded.stop_ids == TINY.stop_ids
    assert loaded.token_bytes(0xC3) == b"\xc3"
    assert not loaded.space_prefix


def test_tokenizer_json_of_a_sentencepiece_model_prefixes_a_space(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    build_backend(spm_data()).save(str(path))
    loaded = load_tokenizer(parts(TokenizerFiles(path, 300), "<s>", "</s>"))
    assert loaded.space_prefix
    assert loaded.encode("abc") == from_gguf(spm_data()).encode("abc")
    assert loaded.token_bytes(3 + 0xC3) == b"\xc3"


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", json.dumps({"model": 1}).encode()])
def test_malformed_tokenizer_json_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load_tokenizer(parts(TokenizerFiles(path, 300)))
