"""Encodes a text in the pieces between its added tokens, and remembers those that come again.

A chat says its system message with every request and all that was said before with every turn: of a
conversation that goes on, only the new message is tokenized.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from tokenizers import AddedToken

from penstock.text.tokenizers.token_pattern import pattern_of

MOST_PIECES: Final = 2048
LONGEST_CHARS: Final = 4096
"""Longer pieces are not remembered: so all of them take some 40 MiB at the most."""


class PieceCache:
    """`encode` gives the ids of a text without added tokens; `tokens`: text -> id of these, which
    must pass `can_cut_at`. `pattern` finds them. Safe to use from several threads."""

    def __init__(self, encode: Callable[[str], list[int]], tokens: Mapping[str, int]) -> None:
        self._encode = encode
        self._tokens = tokens
        self.pattern = re.compile(f"({pattern_of(tokens).pattern})")
        self._remembered = lru_cache(MOST_PIECES)(lambda piece: array("I", encode(piece)))

    def encode(self, text: str) -> list[int]:
        """What encoding the whole text at once gives."""
        ids: list[int] = []
        for index, piece in enumerate(self.pattern.split(text)):
            if index % 2:
                ids.append(self._tokens[piece])
            elif len(piece) > LONGEST_CHARS:
                ids += self._encode(piece)
            elif piece:
                ids += self._remembered(piece)
        return ids


def can_cut_at(tokens: Mapping[int, AddedToken]) -> bool:
    """Whether a text may be cut at these tokens: there are some, and none of them looks at what
    stands around it."""
    return bool(tokens) and not any(
        token.normalized or token.lstrip or token.rstrip or token.single_word
        for token in tokens.values()
    )
