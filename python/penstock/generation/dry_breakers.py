"""Converts DRY's sequence breakers from strings to the token sequences that contain them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.dialog import SequenceBreaker
from penstock.text import Tokenizer

MAX_TAIL_TOKENS: Final = 20
MAX_SEQUENCES: Final = 200_000
_CACHED_STRINGS: Final = 256
_BETWEEN: Final = b"\xff"  # never occurs in UTF-8


class DryBreakers:
    """Finds the token sequences of DRY's sequence breakers in one vocabulary. Thread-safe.

    A breaker is found in every token that contains it, and in every token that ends with the start
    of the breaker if the tokens of the breaker's rest follow. As in llama.cpp, a breaker whose end
    lies in the middle of a token is found only if that token contains the whole breaker. Control
    tokens are never breakers.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._places_of = lru_cache(maxsize=_CACHED_STRINGS)(self._find)

    def sequences(self, strings: tuple[str, ...]) -> tuple[SequenceBreaker, ...]:
        """Return the token sequences that contain one of `strings`, without duplicates. Sequences
        with the same tail are one SequenceBreaker.

        The first call reads the vocabulary, which takes up to a second if it is large. A new string
        takes a few milliseconds. Raises InvalidRequest if there are more than `MAX_SEQUENCES`
        sequences.
        """
        found: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        for text in strings:
            for tail, heads in self._spelled(self._places_of(text)):
                found[tail].update(heads)
            if sum(map(len, found.values())) > MAX_SEQUENCES:
                raise InvalidRequest(
                    "dry_sequence_breakers occur in too many ways in the model's tokens; send"
                    " fewer, or shorter ones",
                    field="dry_sequence_breakers",
                )
        return tuple(
            SequenceBreaker(array("i", sorted(heads)).tobytes(), tail)
            for tail, heads in found.items()
            if heads
        )

    def _spelled(self, places: _Places) -> Iterator[tuple[tuple[int, ...], Iterable[int]]]:
        """Yield (tail, heads) of the token sequences of one string: a sequence is one of the tokens
        `heads`, then the tokens `tail`."""
        yield (), places.whole
        ends = self._vocabulary.by_end
        for heads, tail in places.cut:
            yield tail, (ends[h] for h in heads if ends[h] not in places.whole)

    def _find(self, text: str) -> _Places:
        wanted = text.encode("utf-8", "replace")
        return _Places(self._vocabulary.with_text(wanted), tuple(self._cuts(wanted)))

    def _cuts(self, wanted: bytes) -> Iterator[tuple[range, tuple[int, ...]]]:
        """Yield (tokens that end with a proper prefix of `wanted`, tokens of the rest of `wanted`)
        for each prefix. The first is a range of indices in `_Vocabulary.by_end`."""
        vocabulary = self._vocabulary
        for length in range(1, min(len(wanted), vocabulary.longest + 1)):
            heads = vocabulary.ending_with(wanted[:length])
            if not heads:
                continue
            try:
                tail = self._tokenizer.encode_inside(wanted[length:].decode())
            except UnicodeDecodeError:  # cut within a character
                continue
            yield heads, tuple(tail[:MAX_TAIL_TOKENS])

    @cached_property
    def _vocabulary(self) -> _Vocabulary:
        """The search index of the vocabulary, built on first access. Two concurrent first accesses
        build it twice."""
        tokenizer = self._tokenizer
        return _Vocabulary(
            {
                token: tokenizer.token_bytes(token)
                for token in range(tokenizer.vocab_size)
                if token not in tokenizer.control_ids
            }
        )


@dataclass(frozen=True, slots=True)
class _Places:
    """The tokens in which one breaker string occurs.

    - `whole`: tokens that contain the whole string, in order. The values are unused.
    - `cut`: (tokens that end with the start of the string, tokens of its rest). The first is a
      range of indices in `_Vocabulary.by_end`.
    """

    whole: dict[int, None]
    cut: tuple[tuple[range, tuple[int, ...]], ...]


class _Vocabulary:
    """A search index over the texts of tokens.

    - `texts`: token id -> UTF-8 text.
    - `by_end`: token ids ordered by their reversed texts, so that tokens with the same end are
      adjacent.
    - `longest`: bytes of the longest text.
    """

    def __init__(self, texts: dict[int, bytes]) -> None:
        ends = sorted((text[::-1], token) for token, text in texts.items() if text)
        self.by_end = [token for _, token in ends]
        self.longest = max((len(end) for end, _ in ends), default=0)
        self._ends = [end for end, _ in ends]
        self._tokens = list(texts)
        self._joined = _BETWEEN.join(texts.values())
        self._starts = [0]
        for text in texts.values():
            self._starts.append(self._starts[-1] + len(text) + len(_BETWEEN))

    def with_text(self, wanted: bytes) -> dict[int, None]:
        """Return the tokens that contain a UTF-8 text, as the keys of an ordered dictionary."""
        found = re.finditer(re.escape(wanted), self._joined)
        starts, tokens = self._starts, self._tokens
        return dict.fromkeys(tokens[bisect_right(starts, match.start()) - 1] for match in found)

    def ending_with(self, wanted: bytes) -> range:
        """Return the tokens that end with a UTF-8 text, as a range of indices in `by_end`."""
        end = wanted[::-1]
        last = end + b"\xff" * self.longest
        return range(bisect_left(self._ends, end), bisect_right(self._ends, last))
