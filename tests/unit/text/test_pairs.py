"""Pairs of texts become the token ids that the tokenizers of `transformers` make of them."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import tokenizers
import transformers

from penstock.base.errors import ModelError
from penstock.models.tokenizer_data import TokenizerFiles
from penstock.text.pairs import load_pair_tokenizer

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


@pytest.mark.parametrize("make", [bert, roberta, xlm_roberta, qwen2])
def test_a_pair_is_framed_as_its_tokenizer_does_it(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    pairs, frame = load_pair_tokenizer(saved(tokenizer, tmp_path))
    query, document = pairs.encode_bare([QUERY, DOCUMENT])
    before = [*frame.before, *query, *frame.between]
    expected = tokenizer(QUERY, DOCUMENT, return_token_type_ids=True)
    assert [*before, *document, *frame.after] == expected["input_ids"]
    assert frame.tokens == tokenizer.num_special_tokens_to_add(pair=True)
    if frame.typed:
        rest = len(expected["input_ids"]) - len(before)
        assert expected["token_type_ids"] == [0] * len(before) + [1] * rest
    assert make is not bert or frame.typed


@pytest.mark.parametrize("make", [bert, roberta, xlm_roberta, qwen2])
def test_a_document_is_cut_as_its_tokenizer_does_it(tmp_path: Path, make: Any) -> None:
    tokenizer = make()
    pairs, frame = load_pair_tokenizer(saved(tokenizer, tmp_path))
    query, document = pairs.encode_bare([QUERY, DOCUMENT])
    most = frame.tokens + len(query) + 3
    expected = tokenizer(QUERY, DOCUMENT, truncation="only_second", max_length=most)
    cut = [*frame.before, *query, *frame.between, *document[:3], *frame.after]
    assert cut == expected["input_ids"]


def test_types_that_do_not_begin_with_the_second_text_are_refused(tmp_path: Path) -> None:
    tokenizer = bert().backend_tokenizer
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A", pair="$A [SEP]:1 $B:1", special_tokens=[("[SEP]", 3)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match=r"token types \[0, 1, 1\] of a pair"):
        load_pair_tokenizer(TokenizerFiles(tmp_path / "tokenizer.json", 64))


def test_a_tokenizer_without_letters_is_refused(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"b": 0}, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="no tokens of the letter a"):
        load_pair_tokenizer(TokenizerFiles(tmp_path / "tokenizer.json", 1))
