"""DRY's sequence breakers: from strings to the token sequences in which they occur."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from penstock.text import Tokenizer

MAX_TAIL_TOKENS: Final = 20
_CACHED_STRINGS: Final = 256
_ANCHOR: Final = "\n"


class Breakers:
    """The breakers of one vocabulary. Safe to use from several threads.

    A string occurs in every token that contains it, and in every token that ends with its
    beginning when the tokens of the rest follow. (That is llama.cpp's meaning; a token that holds
    the end of a breaker and more text is found only where it is whole in that token.) Control
    tokens are no text and break nothing.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._texts: list[tuple[int, bytes]] = []
        self._by_last: dict[int, list[tuple[int, bytes]]] = {}
        self._sequences_of = lru_cache(maxsize=_CACHED_STRINGS)(self._find)

    def sequences(self, strings: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """The token sequences of all `strings`, each once. The first call for a string walks the
        vocabulary: some milliseconds, and some tens of them for the first string of all."""
        found = dict.fromkeys(each for text in strings for each in self._sequences_of(text))
        return tuple(found)

    def _find(self, text: str) -> tuple[tuple[int, ...], ...]:
        self._index()
        wanted = text.encode("utf-8", "replace")
        whole = [(token,) for token, has in self._texts if wanted in has]
        covered = {token for (token,) in whole}
        return (
            *whole,
            *((token, *tail) for token, tail in self._split(wanted) if token not in covered),
        )

    def _split(self, wanted: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Tokens that end with a proper prefix of `wanted`, and the tokens of the rest."""
        for length in range(1, len(wanted)):
            prefix = wanted[:length]
            heads = [t for t, has in self._by_last.get(prefix[-1], ()) if has.endswith(prefix)]
            if not heads:
                continue
            try:
                tail = self._tail(wanted[length:].decode())
            except UnicodeDecodeError:  # cut within a character: no text begins there
                continue
            yield from ((token, tail) for token in heads)

    def _tail(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that does not begin the sequence."""
        tokenizer = self._tokenizer
        if not tokenizer.space_prefix:
            return tuple(tokenizer.encode(text)[:MAX_TAIL_TOKENS])
        ids, done = tokenizer.encode(_ANCHOR + text), b""
        while ids and len(done) < len(f" {_ANCHOR}"):
            done += tokenizer.token_bytes(ids.pop(0))
        return tuple(ids[:MAX_TAIL_TOKENS])

    def _index(self) -> None:
        """The text of every token, once; two threads that come first at once do it twice."""
        if self._texts:
            return
        tokenizer = self._tokenizer
        texts = [
            (token, tokenizer.token_bytes(token))
            for token in range(tokenizer.vocab_size)
            if token not in tokenizer.control_ids
        ]
        by_last: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for token, text in texts:
            if text:
                by_last[text[-1]].append((token, text))
        self._by_last = by_last
        self._texts = texts
