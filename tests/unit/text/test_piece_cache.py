"""Encoding a text piece by piece gives the same ids as encoding it at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text.tokenizers.piece_cache import LONGEST_CHARS, PieceCache, can_cut_at
from penstock.text.tokenizers.tokenizer import Tokenizer
from tests.support.checkpoints.tiny_tokenizer import CONTROL, WORDS, byte_letters, tiny_tokenizer

OVERLAPPING = ["<|im", "<|im_start|>user", "in", "\n\n"]


def overlapping_tokenizer() -> Tokenizer:
    """A tokenizer with added tokens that are prefixes of others, and one that is a word."""
    tokens = byte_letters() + CONTROL + WORDS + OVERLAPPING
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 3 + [TokenType.NORMAL] * len(WORDS)
    types += [TokenType.USER_DEFINED] * len(OVERLAPPING)
    return tiny_tokenizer(tokens=tokens, token_types=[int(t) for t in types])


TOKENIZERS = {"plain": tiny_tokenizer(), "overlapping": overlapping_tokenizer()}
texts = st.lists(
    st.one_of(
        st.sampled_from([*CONTROL, *OVERLAPPING, *WORDS, "<|im_", "|>", " ", "\n"]),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


def at_once(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer._backend.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts)
def test_pieces_have_the_same_ids_as_the_whole_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer._pieces is not None
    expected = at_once(tokenizer, text)
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode(text) == expected  # from memory


def test_new_pieces_and_long_pieces_are_encoded() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return [1] * len(text)

    pieces = PieceCache(encode, {"<a>": 7})
    long = "x" * (LONGEST_CHARS + 1)
    assert pieces.encode(f"hi<a>ho<a>{long}") == [1, 1, 7, 1, 1, 7, *[1] * len(long)]
    pieces.encode(f"hi<a>ho<a>new<a>{long}")
    assert asked == ["hi", "ho", long, "new", long]


@pytest.mark.parametrize("trait", ["normalized", "lstrip", "rstrip", "single_word"])
def test_text_is_not_cut_at_tokens_that_depend_on_their_context(trait: str) -> None:
    plain = {"normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    assert can_cut_at({1: AddedToken("<a>", **plain)})
    assert not can_cut_at({1: AddedToken("<a>", **plain | {trait: True})})
    assert not can_cut_at({})
