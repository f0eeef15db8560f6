"""Incremental detokenization equals decoding all tokens at once."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import spm_data

from penstock.text import IncrementalDetokenizer
from penstock.text.tokenizers.tokenizer import Tokenizer, from_gguf
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_tokenizer

TINY = tiny_tokenizer()


def detokenize(tokenizer: Tokenizer, ids: list[int], after: int | None = None) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, after)
    return [detokenizer.push(i) for i in ids] + [detokenizer.finish()]


@given(st.lists(st.integers(0, 263)))
def test_pieces_concatenate_to_the_decoded_text(ids: list[int]) -> None:
    data = b"".join(TINY.token_bytes(i) for i in ids if i not in TINY.control_ids)
    assert "".join(detokenize(TINY, ids)) == data.decode("utf-8", "replace") == TINY.decode(ids)


@given(st.lists(st.lists(st.integers(0, 263), max_size=5), max_size=8), st.booleans())
def test_push_all_equals_pushing_tokens_one_by_one(steps: list[list[int]], prefixed: bool) -> None:
    tokenizer = spaced_tokenizer() if prefixed else TINY
    one_by_one = IncrementalDetokenizer(tokenizer)
    together = IncrementalDetokenizer(tokenizer)
    for step in steps:
        assert together.push_all(step) == "".join(map(one_by_one.push, step))
    assert together.finish() == one_by_one.finish()


@given(st.text())
def test_valid_text_is_never_split_inside_a_code_point(text: str) -> None:
    assert [p for p in detokenize(TINY, list(text.encode())) if p] == list(text)


def test_incomplete_code_point_is_held_back_and_replaced_at_the_end() -> None:
    assert detokenize(TINY, [0x61, 0xF0, 0x9F, 0x98]) == ["a", "", "", "", "�"]


def test_control_tokens_have_no_text() -> None:
    assert detokenize(TINY, [0x61, IM_END, 0x62]) == ["a", "", "b", ""]


@cache
def spaced_tokenizer() -> Tokenizer:
    """A SentencePiece vocabulary of <unk>, <s>, </s>, all bytes, "▁a", "▁" and "a"."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁a", "▁", "a"]
    return from_gguf(
        spm_data(tokens=pieces, token_types=[2, 3, 3] + [6] * 256 + [1] * 3, scores=[0.0] * 262)
    )


def test_space_prefix_is_removed_only_where_encoding_adds_one() -> None:
    tokenizer = spaced_tokenizer()
    space_a = 259
    assert detokenize(tokenizer, [space_a, space_a]) == ["a", " a", ""]
    assert detokenize(tokenizer, [space_a], after=1) == ["a", ""]
    assert detokenize(tokenizer, [space_a], after=space_a) == [" a", ""]
    assert detokenize(tokenizer, [space_a, 2, space_a], after=space_a) == [" a", "", "a", ""]
