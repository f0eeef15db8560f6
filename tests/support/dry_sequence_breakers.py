"""Conversion of DRY sequence breakers between the engine's form and plain token sequences."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from penstock.dialog import SequenceBreaker


def breakers_of(sequences: Iterable[Sequence[int]]) -> tuple[SequenceBreaker, ...]:
    """Return one breaker per sequence."""
    return tuple(
        SequenceBreaker(array("i", [head]).tobytes(), tuple(tail)) for head, *tail in sequences
    )


def sequences_of(breakers: Iterable[SequenceBreaker]) -> list[tuple[int, ...]]:
    """Return every sequence that any of the breakers contains."""
    return [(head, *one.tail) for one in breakers for head in array("i", one.heads)]
