"""Whether a text makes far more tokens than there is room for, found out from a part of it.

Tokenizing takes some 80 bytes and a microsecond for each character: of a text that is far too long,
only as much is tokenized as tells so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

CHARS_A_TOKEN: Final = 16
"""More than usual: a text of fewer characters for each token of room is not looked at."""
PORTION_CHARS: Final = 32 * 1024
SPARE_TOKENS: Final = 512


def needs_length_check(chars: int, room_tokens: int) -> bool:
    """Whether so long a text is worth a look before it is tokenized as a whole."""
    return chars > CHARS_A_TOKEN * room_tokens + PORTION_CHARS


def exceeds_room(count: Callable[[str], int], texts: Iterable[str], room_tokens: int) -> bool:
    """Whether the texts together make more than twice as many tokens as fit. `count`: the tokens
    of a portion. Where a text is cut, a portion has a few tokens more than its share: hence
    twice."""
    portions = (portion for text in texts for portion in _from_start(text))
    return _portions_to_fill(count, portions, room_tokens) is not None


def overfull_start(count: Callable[[str], int], text: str, room_tokens: int) -> str:
    """So much of the start of a text that it makes more than twice as many tokens as fit; all of
    it where it makes no more."""
    portions = _portions_to_fill(count, _from_start(text), room_tokens)
    return text if portions is None else text[: portions * PORTION_CHARS]


def overfull_end(count: Callable[[str], int], text: str, room_tokens: int) -> str:
    """The same of its end."""
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
