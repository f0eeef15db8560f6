"""Pairs of texts get the same token ids as with the tokenizers of `transformers`."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import tokenizers
import transformers

from penstock.base.errors import ModelError
from penstock.models.tokenizer.tokenizer_data import TokenizerFiles
from penstock.text.tokenizers.pair_tokenizer import PairPrefixes, PairTokenizer, load_pair_tokenizer

BYTES = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
QUERY, DOCUMENT = "  ab cd", " e ab\n fab  z"


def ids(*tokens: str) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def bert() -> Any:
    ends = [f"##{letter}" for letter in ascii_lowercase]
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    return transformers.BertTokenizer(vocab=ids(*special, *ascii_lowercase, *ends))


def roberta() -> Any:
    vocab = ids("<s>", "<pad>", "</s>", "<unk>", "<mask>", *BYTES, "ab")
    return transformers.RobertaTokenizer(vocab=vocab, merges=[("a", "b")])


def xlm_roberta() -> Any:
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *ascii_lowercase, "\u2581", "\u2581ab", "<mask>"]
    return transformers.XLMRobertaTokenizer(vocab=[(piece, -len(piece) / 8) for piece in pieces])


def qwen2() -> Any:
    return transformers.Qwen2Tokenizer(vocab=ids(*BYTES, "ab", "<|end|>"), merges=[("a", "b")])


def saved(tokenizer: Any, folder: Path) -> TokenizerFiles:
    tokenizer.save_pretrained(folder)
    return TokenizerFiles(folder / "tokenizer.json", len(tokenizer))


def whole(pairs: PairTokenizer, query: str, document: str, most_tokens: int) -> list[int]:
    """Return the ids of a pair, cut to `most_tokens`."""
    room = most_tokens - len(pairs.end)
    (opening,) = pairs.prefixes(query, [document], room).token_ids
    return opening[:room] + pairs.end


@pytest.mark.parametrize("make", [bert, roberta, xlm_roberta, qwen2])
def test_pair_is_framed_like_in_transformers(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    pairs = load_pair_tokenizer(saved(tokenizer, tmp_path))
    expected = tokenizer(QUERY, DOCUMENT, return_token_type_ids=True)
    assert whole(pairs, QUERY, DOCUMENT, 512) == expected["input_ids"]
    if pairs.typed:
        first = pairs.prefixes(QUERY, [DOCUMENT], 512).query_tokens
        rest = len(expected["input_ids"]) - first
        assert expected["token_type_ids"] == [0] * first + [1] * rest
    assert make is not bert or pairs.typed


@pytest.mark.parametrize("make", [bert, roberta, xlm_roberta, qwen2])
def test_document_is_truncated_like_in_transformers(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    pairs = load_pair_tokenizer(saved(tokenizer, tmp_path))
    most = len(tokenizer(QUERY, "")["input_ids"]) + 3
    expected = tokenizer(QUERY, DOCUMENT, truncation="only_second", max_length=most)
    assert whole(pairs, QUERY, DOCUMENT, most) == expected["input_ids"]
    assert whole(pairs, QUERY, DOCUMENT * 100_000, most) == expected["input_ids"]


@pytest.mark.parametrize("make", [bert, roberta, xlm_roberta, qwen2])
def test_query_without_room_for_documents_has_no_pairs(tmp_path: Path, make: Any) -> None:
    pairs = load_pair_tokenizer(saved(make(), tmp_path))
    tokens = pairs.prefixes(QUERY, [DOCUMENT], 512).query_tokens
    assert len(pairs.prefixes(QUERY, [DOCUMENT], tokens + 1).token_ids) == 1
    assert pairs.prefixes(QUERY, [DOCUMENT], tokens) == PairPrefixes(tokens, ())


def test_unsupported_token_types_of_a_pair_are_refused(tmp_path: Path) -> None:
    tokenizer = bert().backend_tokenizer
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP]:1 $B:1", special_tokens=[("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match=r"token types \[0, 1, 1\] of a pair"):
        load_pair_tokenizer(TokenizerFiles(tmp_path / "tokenizer.json", 64))


def test_tokenizer_without_letters_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"b": 0}, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="no token for the letter a"):
        load_pair_tokenizer(TokenizerFiles(tmp_path / "tokenizer.json", 1))
