"""Splits text into sentences, for speech."""

from __future__ import annotations

import re
from typing import Final

MAX_CHARS: Final = 400
"""Largest number of characters of a piece. A longer sentence is cut."""

# The end of a sentence: its last mark, closing quotes and brackets, and space. Chinese and Japanese
# sentences end without a space.
_END: Final = re.compile(r"""[.!?…]+["'”’»)\]]*\s+|[。！？]+[」』”’）]*\s*|\s*\n\s*""")
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(“\"'])(?:[A-Za-z]|(?:[A-Za-z]\.)+[A-Za-z]|\d+|approx|capt|cf|dept|dr|etc|fig|gen|gov"
    r"|hon|inc|jr|lt|ltd|mr|mrs|ms|mt|no|prof|rev|sgt|sr|st|vol|vs)$",
    re.IGNORECASE,
)
# The best places to cut a long sentence, in order.
_CUTS: Final = (";:—–", ",，、；：", " ")


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, each of at most MAX_CHARS characters and without outer
    whitespace. A line break ends a sentence; the point of an abbreviation or initial does not."""
    found = []
    start = 0
    for end in _END.finditer(text):
        before = text[start : end.start()]
        one_point = end.group().rstrip() == "."
        if one_point and "\n" not in end.group() and _ABBREVIATION.search(before):
            continue
        found.append(text[start : end.end()])
        start = end.end()
    found.append(text[start:])
    return [piece for sentence in found for piece in _pieces(sentence.strip())]


def _pieces(sentence: str) -> list[str]:
    pieces = []
    while len(sentence) > MAX_CHARS:
        end = _cut(sentence)
        pieces.append(sentence[:end].strip())
        sentence = sentence[end:].strip()
    return [piece for piece in (*pieces, sentence) if piece]


def _cut(sentence: str) -> int:
    for marks in _CUTS:
        end = max(sentence.rfind(mark, MAX_CHARS // 2, MAX_CHARS) for mark in marks)
        if end >= 0:
            return end + 1
    return MAX_CHARS
