"""Text is split into sentences for speech."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.text.sentences import MAX_CHARS, sentences


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("One.Two", ["One.Two"]),
        ('He said "No." Then he left.', ['He said "No."', "Then he left."]),
        ("Dr. Smith met Mrs. Jones. They talked.", ["Dr. Smith met Mrs. Jones.", "They talked."]),
        ("J. R. R. Tolkien wrote it.", ["J. R. R. Tolkien wrote it."]),
        ("It is 5 p.m. now. Go.", ["It is 5 p.m. now.", "Go."]),
        ("It cost 5.50 euros. Cheap!", ["It cost 5.50 euros.", "Cheap!"]),
        ("1. Eggs\n2. Milk", ["1. Eggs", "2. Milk"]),
        ("Wait... what?! Yes.", ["Wait...", "what?!", "Yes."]),
        ("A title\n\nA paragraph.", ["A title", "A paragraph."]),
        ("你好。今天天气很好！走吧", ["你好。", "今天天气很好！", "走吧"]),
        ("", []),
        ("  \n ", []),
    ],
)
def test_sentences_end_at_marks_and_line_breaks(text: str, parts: list[str]) -> None:
    assert sentences(text) == parts


def test_a_long_sentence_is_cut_at_the_best_place() -> None:
    clause = "word " * 60
    first, second = sentences(f"{clause.strip()}; {clause.strip()}")
    assert first.endswith("word;") and second.startswith("word")
    assert [len(part) for part in sentences("x" * 900)] == [400, 400, 100]


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=2000))
def test_no_text_is_lost_and_no_piece_is_too_long(text: str) -> None:
    parts = sentences(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= MAX_CHARS for part in parts)
