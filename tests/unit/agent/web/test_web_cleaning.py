"""Cleaning of untrusted text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.agent.web.cleaning import clean_line, clean_snippet, clean_text


@pytest.mark.parametrize(
    "hidden",
    ["\0", "\x1b", "\x08", "\x7f", "\x9b", "\u202e", "\u2066", "\ufeff", "\u2060", "\ud800",
     "\U000e0041"],
)  # fmt: skip
def test_hidden_characters_are_removed(hidden: str) -> None:
    assert clean_text(f"a{hidden}b", 10) == "ab"


def test_line_ends_are_unified_and_blank_lines_joined() -> None:
    assert clean_text("a\r\nb\rc\u2028d\n \n\t\n\ne", 100) == "a\nb\nc\nd\n\ne"


def test_letters_of_all_scripts_stay() -> None:
    text = "naïve 日本語 हिन्दी می‌خواهم 👩‍💻\tx"
    assert clean_text(text, 100) == text


@given(st.text(), st.integers(1, 50))
def test_cleaned_text_can_be_encoded_and_is_short(text: str, max_chars: int) -> None:
    for cleaned in (clean_text(text, max_chars), clean_line(text, max_chars)):
        cleaned.encode()
        assert len(cleaned) <= max_chars and "\0" not in cleaned
    assert "\n" not in clean_line(text, max_chars)


def test_snippet_has_no_tags_and_no_entities() -> None:
    assert clean_snippet("a <strong>b</strong>&nbsp;&amp; c\n<br/>d", 100) == "a b & c d"
    assert clean_snippet("1 < 2 and 3 > 2", 100) == "1 < 2 and 3 > 2"
    assert clean_snippet("&#0;&#x202e;x", 100) == "\ufffdx"
