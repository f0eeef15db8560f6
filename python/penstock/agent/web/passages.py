"""Divides texts into passages and chooses the best ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PASSAGE_CHARS: Final = 1000
GAP: Final = "\n[...]\n"
_ENDS: Final = ("\n\n", "\n", ". ", " ")


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a page. `page`: index of the page. `position`: its number in the page, from
    0."""

    page: int
    position: int
    text: str


def split_text(text: str, size: int = PASSAGE_CHARS) -> list[str]:
    """Return the passages of a text, of at most `size` characters, which end at a paragraph, line,
    sentence or word if there is one in their second half."""
    passages = []
    start = 0
    while start < len(text):
        end = start + size
        if end < len(text):
            end = _last_end(text, start + size // 2, end)
        if passage := text[start:end].strip():
            passages.append(passage)
        start = end
    return passages


def choose_passages(
    passages: Sequence[Passage], scores: Sequence[float], max_chars: int
) -> list[Passage]:
    """Return the passages with the best scores that fit in `max_chars` together, best first.

    Passages without a positive score are left out, except the first one of each page. Among equal
    scores, the beginnings of pages come first.
    """
    ranked = sorted(
        (
            (score, passage)
            for score, passage in zip(scores, passages, strict=True)
            if score > 0 or passage.position == 0
        ),
        key=lambda entry: (-entry[0], entry[1].position, entry[1].page),
    )
    chosen = []
    for _, passage in ranked:
        size = len(passage.text) + len(GAP)
        if size <= max_chars:
            chosen.append(passage)
            max_chars -= size
    return chosen


def join_passages(passages: Sequence[Passage]) -> str:
    """Return passages of one page as one text, in the page's order, with marks at gaps."""
    parts: list[str] = []
    last = -1
    for passage in sorted(passages, key=lambda passage: passage.position):
        if parts:
            parts.append("\n" if passage.position == last + 1 else GAP)
        parts.append(passage.text)
        last = passage.position
    return "".join(parts)


def _last_end(text: str, start: int, end: int) -> int:
    """Return the end of the last unit of text[start:end], `end` if there is none."""
    for mark in _ENDS:
        found = text.rfind(mark, start, end)
        if found >= 0:
            return found + len(mark)
    return end
