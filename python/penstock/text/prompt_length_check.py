"""Checks whether a text has far more tokens than fit, by tokenizing only a part of the text.

Tokenizing costs about 80 bytes and a microsecond per character. A text that is far too long is
tokenized only up to the point where it certainly does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

CHARS_PER_TOKEN: Final = 16
"""More characters than a token usually has. A text with fewer characters per token of room is not
checked."""
PORTION_CHARS: Final = 32 * 1024
SPARE_TOKENS: Final = 512


def needs_length_check(chars: int, room_tokens: int) -> bool:
    """Whether a text of this length should be checked before all of it is tokenized."""
    return chars > CHARS_PER_TOKEN * room_tokens + PORTION_CHARS


def exceeds_room(count: Callable[[str], int], texts: Iterable[str], room_tokens: int) -> bool:
    """Whether the texts together have more than twice as many tokens as fit.

    `count` returns the number of tokens of a portion. Cutting a text into portions adds a few
    tokens at each cut, hence the factor two.
    """
    portions = (portion for text in texts for portion in _from_start(text))
    return _portions_to_fill(count, portions, room_tokens) is not None


def overfull_start(count: Callable[[str], int], text: str, room_tokens: int) -> str:
    """Return a prefix of a text that has more than twice as many tokens as fit, or the whole text
    if it has fewer tokens."""
    portions = _portions_to_fill(count, _from_start(text), room_tokens)
    return text if portions is None else text[: portions * PORTION_CHARS]


def overfull_end(count: Callable[[str], int], text: str, room_tokens: int) -> str:
    """Return a suffix of a text that has more than twice as many tokens as fit, or the whole text
    if it has fewer tokens."""
    portions = _portions_to_fill(count, _from_end(text), room_tokens)
    return text if portions is None else text[-portions * PORTION_CHARS :]


def _from_start(text: str) -> Iterator[str]:
    return (text[i : i + PORTION_CHARS] for i in range(0, len(text), PORTION_CHARS))


def _from_end(text: str) -> Iterator[str]:
    ends = range(len(text), 0, -PORTION_CHARS)
    return (text[max(end - PORTION_CHARS, 0) : end] for end in ends)


def _portions_to_fill(
    count: Callable[[str], int], portions: Iterable[str], room_tokens: int
) -> int | None:
    left = 2 * room_tokens + SPARE_TOKENS
    for number, portion in enumerate(portions, 1):
        left -= count(portion)
        if left < 0:
            return number
    return None
