"""A pattern of many tokens matches the same text as trying each of them, longest first."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.models.tokenizer.tokenizer_data import TokenType
from penstock.text.tokenizers.token_pattern import MAX_DEPTH, pattern_of
from tests.support.checkpoints.tiny_tokenizer import WORDS, byte_letters, tiny_tokenizer

UNUSED = [f"<unused{index}>" for index in range(300)]
tokens = st.lists(st.text("<|a.\n▁(", min_size=1, max_size=5), max_size=12)


@given(tokens=tokens, text=st.text("<|a.\n▁(", max_size=40))
def test_pattern_finds_the_longest_token_at_each_place(tokens: list[str], text: str) -> None:
    longest_first = sorted(tokens, key=len, reverse=True)
    flat = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    found = [match.span() for match in pattern_of(tokens).finditer(text)]
    assert found == [match.span() for match in flat.finditer(text)]


def test_shared_prefix_of_tokens_appears_once() -> None:
    assert pattern_of([*UNUSED, "<bos>", "</s>"]).pattern.count("unused") == 1


def test_patterns_of_a_tokenizer_share_prefixes() -> None:
    types = [TokenType.NORMAL] * (256 + len(WORDS)) + [TokenType.CONTROL] * len(UNUSED)
    tokenizer = tiny_tokenizer(
        tokens=byte_letters() + WORDS + UNUSED,
        token_types=[int(t) for t in types],
        bos_id=None,
        eos_id=None,
    )
    assert tokenizer._pieces is not None
    for pattern in (tokenizer._control_pattern, tokenizer._pieces.pattern):
        assert pattern.pattern.count("unused") == 1
    assert tokenizer.break_control("a<unused299>", "!") == "a<!unused299>"


@pytest.mark.parametrize("letter", ["\n", "▁"])
def test_runs_longer_than_the_nesting_limit_are_found(letter: str) -> None:
    runs = [letter * length for length in range(2, 20 * MAX_DEPTH)]
    pattern = pattern_of(runs)
    for length in (2, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 5 * MAX_DEPTH, len(runs[-1])):
        match = pattern.search("x" + letter * length + "x")
        assert match is not None and match[0] == letter * length


def test_pattern_of_no_tokens_matches_nothing() -> None:
    assert pattern_of(["", ""]).search("any") is None
