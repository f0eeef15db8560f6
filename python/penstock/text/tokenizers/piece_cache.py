"""Encodes a text piece by piece, split at its added tokens, and caches the tokens of each piece.

Each request of a chat repeats the system message and all earlier turns, so only the new message has
to be tokenized.
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
"""Characters of the longest piece that is cached, which limits the cache to about 40 MiB."""


class PieceCache:
    """Encodes texts that contain added tokens. Thread-safe.

    - `encode`: returns the token ids of a text without added tokens.
    - `tokens`: text -> id of the added tokens, which must pass `can_cut_at`.
    - `pattern`: finds added tokens in a text.
    """

    def __init__(self, encode: Callable[[str], list[int]], tokens: Mapping[str, int]) -> None:
        self._encode = encode
        self._tokens = tokens
        self.pattern = re.compile(f"({pattern_of(tokens).pattern})")
        self._remembered = lru_cache(MOST_PIECES)(lambda piece: array("I", encode(piece)))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text. Encoding the whole text at once would give equal ids."""
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
    """Whether a text may be cut at these added tokens: there is at least one, and whether a token
    is recognized never depends on the text around it."""
    return bool(tokens) and not any(
        token.normalized or token.lstrip or token.rstrip or token.single_word
        for token in tokens.values()
    )
