"""Caches compiled grammars, keyed by their text.

The cache compiles grammars on its own threads and returns futures, so that the engine loop never
waits for a compilation. This module does not depend on requests or steps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.base.errors import InvalidRequest, Unavailable
from penstock.grammar.guides import GrammarGuide, LazyGrammarGuide
from penstock.grammar.trigger_matcher import TriggerMatcher
from penstock.grammar.types import Grammar, GrammarTriggers
from penstock.grammar.vocabulary import GrammarError, Vocabulary, compile_grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_T = TypeVar("_T")

CACHE_BYTES: Final = 64 * 1024 * 1024
_THREADS: Final = 2
_FIXED_BYTES: Final = 64 * 1024
_BYTES_PER_CHARACTER: Final = 128
"""Estimated bytes of a compiled grammar per character of its text, since the library does not
report the size. Measured: 230 kB for schemas of 1,300 characters, 460 kB for 6,200, 1.6 MB for
27,000."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A compiled grammar.

    - `matcher`: the grammar's matcher in its start state. Copy it before use.
    - `tokenizer`: the tokenizer that the grammar was compiled for.
    """

    matcher: LLMatcher
    tokenizer: LLTokenizer

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a token. A control token's bytes are its name."""
        return self.tokenizer.decode_bytes([token_id])


class GrammarCache:
    """Compiles grammars on internal threads and caches them. To be used by one thread.

    - `vocab_size`: bits of a token mask.
    - `cache_bytes`: estimated size above which the least recently used grammars are evicted.
    - `compiled`, `reused`, `refused`: number of grammars compiled, found in the cache, and failed.
    - `compile_s`: total compilation time in seconds.
    """

    def __init__(self, vocab_size: int, cache_bytes: int = CACHE_BYTES) -> None:
        self._vocab_size = vocab_size
        self._cache_bytes = cache_bytes
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-grammars")
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: Future[LLTokenizer] | None = None
        self._compiled: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()
        self._held_bytes = 0
        self._counters_lock = threading.Lock()
        self.compiled = 0
        self.reused = 0
        self.refused = 0
        self.compile_s = 0.0

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Start to build the tokenizer in the background, unless a vocabulary was set before."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            with contextlib.suppress(Unavailable):  # compile() tries again
                self._tokenizer_future(vocabulary)

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """Return a future of the compiled grammar. `guide_of` turns it into a sequence's guide.

        The future fails with InvalidRequest or ModelError. Raises InvalidRequest if no vocabulary
        was set, Unavailable if the machine has no thread left.
        """
        if self._vocabulary is None:
            raise InvalidRequest(
                "a constraint needs the model's vocabulary, but the engine has none",
                field="grammar",
            )
        cached = self._compiled.get(grammar.value)
        if cached is not None:
            self._compiled.move_to_end(grammar.value)
            self.reused += 1
            return cached
        tokenizer = self._tokenizer_future(self._vocabulary)
        future = self._submit(partial(self._compile, tokenizer, grammar.value))
        self._compiled[grammar.value] = future
        self._held_bytes += _size_bytes(grammar.value)
        while self._held_bytes > self._cache_bytes and len(self._compiled) > 1:
            value, _ = self._compiled.popitem(last=False)
            self._held_bytes -= _size_bytes(value)
        return future

    def close(self) -> None:
        """Wait for the compilations in progress, then stop the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _tokenizer_future(self, vocabulary: Vocabulary) -> Future[LLTokenizer]:
        if self._tokenizer is None:
            self._tokenizer = self._submit(partial(vocabulary.grammar_tokenizer, self._vocab_size))
        return self._tokenizer

    def _submit(self, work: Callable[[], _T]) -> Future[_T]:
        try:
            return self._pool.submit(work)
        except RuntimeError as error:  # fails one request, not the engine
            raise Unavailable("no thread is free to compile a grammar", retry_after_s=1) from error

    def _compile(self, tokenizer: Future[LLTokenizer], value: str) -> CompiledGrammar:
        ready = tokenizer.result()
        start_s = time.monotonic()
        try:
            matcher = compile_grammar(ready, value)
        except GrammarError as error:
            with self._counters_lock:
                self.refused += 1
            raise InvalidRequest(f"the grammar cannot be used: {error}", field="grammar") from error
        with self._counters_lock:
            self.compiled += 1
            self.compile_s += time.monotonic() - start_s
        return CompiledGrammar(matcher, ready)


def guide_of(
    compiled: Future[CompiledGrammar], triggers: GrammarTriggers | None = None
) -> GrammarGuide | LazyGrammarGuide:
    """Return a new guide at the start of a grammar whose compilation is done. With `triggers`, the
    grammar applies only from a trigger on.

    Raises the error with which the compilation failed.
    """
    done = compiled.result(timeout=0)
    if triggers is None:
        return GrammarGuide(done.matcher.deep_copy(), frozenset(done.tokenizer.eos_tokens))
    return LazyGrammarGuide(done.matcher, TriggerMatcher(triggers, done.bytes_of))


def _size_bytes(value: str) -> int:
    return _FIXED_BYTES + _BYTES_PER_CHARACTER * len(value)
