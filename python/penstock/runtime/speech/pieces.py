"""Cuts long phoneme strings into pieces that a model can speak at once."""

from __future__ import annotations

from typing import Final

# The best places to cut after, in order.
MARKS: Final = ("!.?…", ":;—", ",", " ")


def cut_phonemes(phonemes: str, limit: int) -> list[str]:
    """Return the phonemes in pieces of at most `limit` characters, cut after punctuation or a space
    if there is one in the second half of a piece."""
    pieces = []
    left = phonemes.strip()
    while len(left) > limit:
        end = _cut(left, limit)
        pieces.append(left[:end].strip())
        left = left[end:].strip()
    return [piece for piece in (*pieces, left) if piece]


def _cut(text: str, limit: int) -> int:
    for marks in MARKS:
        found = max(text.rfind(mark, limit // 2, limit) for mark in marks)
        if found >= 0:
            return found + 1
    return limit
