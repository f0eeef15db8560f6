"""DRY's breakers in the form that an engine takes, from and to plain token sequences."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from penstock.dialog import SequenceBreaker


def breakers_of(sequences: Iterable[Sequence[int]]) -> tuple[SequenceBreaker, ...]:
    """One for each sequence."""
    return tuple(
        SequenceBreaker(array("i", [head]).tobytes(), tuple(tail)) for head, *tail in sequences
    )


def sequences_of(breakers: Iterable[SequenceBreaker]) -> list[tuple[int, ...]]:
    """Every sequence that any of them stands for."""
    return [(head, *one.tail) for one in breakers for head in array("i", one.heads)]
