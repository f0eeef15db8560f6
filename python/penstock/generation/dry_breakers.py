"""DRY's sequence breakers: from strings to the token sequences in which they occur."""

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
    """The breakers of one vocabulary. Safe to use from several threads.

    A string occurs in every token that contains it, and in every token that ends with its
    beginning when the tokens of the rest follow. (That is llama.cpp's meaning; a token that holds
    the end of a breaker and more text is found only where it is whole in that token.) Control
    tokens are no text and break nothing.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._places_of = lru_cache(maxsize=_CACHED_STRINGS)(self._find)

    def sequences(self, strings: tuple[str, ...]) -> tuple[SequenceBreaker, ...]:
        """Return the token sequences of all `strings`, each once, with common tails merged. The
        first call reads the vocabulary, up to a second for a large one; a new string takes a few
        milliseconds.

        Raises InvalidRequest if there are more than `MAX_SEQUENCES`.
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
        """Tails, and the tokens before each."""
        yield (), places.whole
        ends = self._vocabulary.by_end
        for heads, tail in places.cut:
            yield tail, (ends[h] for h in heads if ends[h] not in places.whole)

    def _find(self, text: str) -> _Places:
        wanted = text.encode("utf-8", "replace")
        return _Places(self._vocabulary.with_text(wanted), tuple(self._cuts(wanted)))

    def _cuts(self, wanted: bytes) -> Iterator[tuple[range, tuple[int, ...]]]:
        """Tokens that end with a proper prefix of `wanted`, and the tokens of the rest."""
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
        """Read the vocabulary once; two concurrent first calls read it twice."""
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
    """The places of one string. `whole`: tokens that contain it, in order; `cut`: tokens that end
    with its beginning, as places in `_Vocabulary.by_end`, each with the tokens of its rest."""

    whole: dict[int, None]
    cut: tuple[tuple[range, tuple[int, ...]], ...]


class _Vocabulary:
    """A search index over the texts of tokens. `by_end`: the tokens ordered by their reversed
    texts, so that those with the same end are neighbours; `longest`: bytes of the longest text."""

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
        """The tokens that contain a text in UTF-8, in order."""
        found = re.finditer(re.escape(wanted), self._joined)
        starts, tokens = self._starts, self._tokens
        return dict.fromkeys(tokens[bisect_right(starts, match.start()) - 1] for match in found)

    def ending_with(self, wanted: bytes) -> range:
        """The tokens that end with a text in UTF-8, as places in `by_end`."""
        end = wanted[::-1]
        last = end + b"\xff" * self.longest
        return range(bisect_left(self._ends, end), bisect_right(self._ends, last))
