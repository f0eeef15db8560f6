"""A cache of grammars, compiled off the loop and kept by content.

Threads of its own compile; the loop asks for a guide and gets it at once or is called when it is
there. It knows nothing of requests and steps.
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
"""What a compiled grammar is taken to weigh: the library does not say. Measured: 230 kB for schemas
of 1,300 characters, 460 kB for 6,200, 1.6 MB for 27,000."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar at its start, and the tokens that it was compiled for."""

    matcher: LLMatcher
    tokenizer: LLTokenizer

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token; of a control token its name."""
        return self.tokenizer.decode_bytes([token_id])


class GrammarCache:
    """Holds compiled grammars for masks of `vocab_size` bits, up to `cache_bytes` of them, least
    recently
    used first to go. Used by one thread; what it starts in others it keeps to itself."""

    def __init__(self, vocab_size: int, cache_bytes: int = CACHE_BYTES) -> None:
        self._vocab_size = vocab_size
        self._cache_bytes = cache_bytes
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-grammars")
        self._vocabulary: Vocabulary | None = None
        self._tokenizer: Future[LLTokenizer] | None = None
        self._compiled: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()
        self._held_bytes = 0
        self._counting = threading.Lock()
        self.compiled = 0
        self.reused = 0
        self.refused = 0
        self.compile_s = 0.0

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        """Start to build the tokenizer, if none was taught."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            with contextlib.suppress(Unavailable):  # the first grammar tries again
                self._built(vocabulary)

    def compile(self, grammar: Grammar) -> Future[CompiledGrammar]:
        """The compiled grammar, at its start. `guide_of` makes of it what a sequence needs.

        The future fails with InvalidRequest or ModelError. Raises InvalidRequest where the
        vocabulary is not known, Unavailable where this machine gives no thread.
        """
        if self._vocabulary is None:
            raise InvalidRequest(
                "a constraint needs the model's vocabulary, which the engine was not taught",
                field="grammar",
            )
        known = self._compiled.get(grammar.value)
        if known is not None:
            self._compiled.move_to_end(grammar.value)
            self.reused += 1
            return known
        tokenizer = self._built(self._vocabulary)
        future = self._begun(partial(self._compile, tokenizer, grammar.value))
        self._compiled[grammar.value] = future
        self._held_bytes += _weight(grammar.value)
        while self._held_bytes > self._cache_bytes and len(self._compiled) > 1:
            value, _ = self._compiled.popitem(last=False)
            self._held_bytes -= _weight(value)
        return future

    def close(self) -> None:
        """End the threads after what they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _built(self, vocabulary: Vocabulary) -> Future[LLTokenizer]:
        if self._tokenizer is None:
            self._tokenizer = self._begun(partial(vocabulary.grammar_tokenizer, self._vocab_size))
        return self._tokenizer

    def _begun(self, work: Callable[[], _T]) -> Future[_T]:
        try:
            return self._pool.submit(work)
        except RuntimeError as error:  # what it costs one request must not end the engine
            raise Unavailable("there is no thread for a grammar now", retry_after_s=1) from error

    def _compile(self, tokenizer: Future[LLTokenizer], value: str) -> CompiledGrammar:
        with_tokens = tokenizer.result()
        began = time.monotonic()
        try:
            matcher = compile_grammar(with_tokens, value)
        except GrammarError as error:
            with self._counting:
                self.refused += 1
            raise InvalidRequest(f"the grammar cannot be used: {error}", field="grammar") from error
        with self._counting:
            self.compiled += 1
            self.compile_s += time.monotonic() - began
        return CompiledGrammar(matcher, with_tokens)


def guide_of(
    compiled: Future[CompiledGrammar], triggers: GrammarTriggers | None = None
) -> GrammarGuide | LazyGrammarGuide:
    """A guide from the start of a grammar whose compilation is done. Raises what the compilation
    failed with."""
    done = compiled.result(timeout=0)
    if triggers is None:
        return GrammarGuide(done.matcher.deep_copy(), frozenset(done.tokenizer.eos_tokens))
    return LazyGrammarGuide(done.matcher, TriggerMatcher(triggers, done.bytes_of))


def _weight(value: str) -> int:
    return _FIXED_BYTES + _BYTES_PER_CHARACTER * len(value)
