"""Defines the vocabulary that grammars need, and compiles a grammar under limits.

The API process and the engine compile grammars with the same code: the API process to refuse a bad
grammar before it is sent to the engine, the engine to fill token masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.errors import ModelError

if TYPE_CHECKING:  # imported on first use, so that llguidance does not delay the start
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


_CACHED_TEXTS: Final = 4096
"""Number of forced texts whose tokens are cached. Masks tokenize the same texts again and again."""


class GrammarError(Exception):
    """A grammar cannot be used. The message comes from the grammar library."""


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer as plain data, for grammars.

    - `tokenizer_json`: a serialized `tokenizers` tokenizer that splits any text into tokens with
      the same bytes. It includes the merges, so that forced text is tokenized as in training.
    - `stop_ids`: tokens that end an answer if the grammar may end.
    - `tokens`: the bytes of each token, by id.
    - `reserved_ids`: tokens that are not text. A grammar can name them only by id or name.
    """

    tokenizer_json: str
    stop_ids: tuple[int, ...]
    tokens: tuple[bytes, ...] = ()
    reserved_ids: tuple[int, ...] = ()

    def grammar_tokenizer(self, vocab_size: int) -> LLTokenizer:
        """Build llguidance's tokenizer for masks of `vocab_size` bits. The call takes a fraction of
        a second.

        Raises ModelError.
        """
        from llguidance import LLTokenizer, TokenizerWrapper

        try:
            byte_exact = ByteExactTokenizer(self, vocab_size)
            stop_ids = [token for token in self.stop_ids if token < vocab_size]
            return LLTokenizer(TokenizerWrapper(byte_exact), eos_token=stop_ids or None)
        except Exception as error:  # both libraries raise plain Exception
            raise ModelError(f"the tokenizer cannot be used for grammars: {error}") from error


class ByteExactTokenizer:
    """Splits text into tokens with exactly the same bytes. Never returns reserved tokens.

    Used as the tokenizer of a `llguidance.TokenizerWrapper`. Thread-safe.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_str(vocabulary.tokenizer_json)
        tokens = list(vocabulary.tokens[:vocab_size])
        self.tokens = tokens + [b""] * (vocab_size - len(tokens))
        self.special_token_ids = [token for token in vocabulary.reserved_ids if token < vocab_size]
        self.eos_token_id = min(vocabulary.stop_ids, default=0)
        self._reserved = frozenset(self.special_token_ids)
        self._tokenize_cached = lru_cache(maxsize=_CACHED_TEXTS)(self._tokenize)

    def __call__(self, data: bytes) -> list[int]:
        return list(self._tokenize_cached(data))

    def _tokenize(self, data: bytes) -> tuple[int, ...]:
        ids = self._backend.encode(data.decode(), add_special_tokens=False).ids
        tokens = self.tokens
        if self._reserved.isdisjoint(ids) and b"".join(tokens[i] for i in ids) == data:
            return tuple(ids)
        return tuple(self._longest(data))

    def _longest(self, data: bytes) -> Iterator[int]:
        """Split bytes into the longest tokens, from the start on. A byte without a token is left
        out."""
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._max_token_bytes), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is not None:
                yield self._by_bytes[data[at:end]]
            at = end or at + 1

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        ids = range(len(self.tokens) - 1, -1, -1)  # the lowest id of equal tokens wins
        return {self.tokens[i]: i for i in ids if i not in self._reserved and self.tokens[i]}

    @cached_property
    def _max_token_bytes(self) -> int:
        return max(map(len, self._by_bytes), default=0)


def compile_grammar(tokenizer: LLTokenizer, value: str) -> LLMatcher:
    """Return a matcher in the start state of a serialized grammar.

    The function also computes the first mask, which fills the lexer tables that all copies share.
    Raises GrammarError.

    The library limits most of its work, but neither the time for intersections of regular
    expressions nor its recursion depth. Therefore a child process tries a client's grammar first
    (`trial_process`).
    """
    from llguidance import LLMatcher
    from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

    matcher = LLMatcher(tokenizer, value, log_level=0, limits=_limits())
    if matcher.is_error():
        raise GrammarError(matcher.get_error())
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(matcher, mask)
    if matcher.is_error():
        raise GrammarError(matcher.get_error())
    if not mask.any():
        raise GrammarError("it allows no answer at all")
    return matcher


def _limits() -> LLParserLimits:
    """Return the limits that the library enforces while it compiles a grammar or computes a mask. A
    grammar that exceeds a limit fails its request. A lexer state takes 1 to 2 kB."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )
