"""A model's vocabulary as a grammar sees it, and the compilation of a grammar under bounds.

Both sides of the engine's wall compile, in the same way: the text side to refuse a bad grammar
before it travels, the engine to compute masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.base.errors import ModelError

if TYPE_CHECKING:  # no start waits for the library: only constraints need it
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


_REMEMBERED: Final = 4096
"""Forced texts; the same ones come again at every mask."""


class GrammarError(Exception):
    """A grammar cannot be used; the text says why, in the words of the library."""


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer as plain data, for grammars.

    `tokenizer_json`: the serialization of a `tokenizers` tokenizer that cuts any text into tokens
    of the same bytes, merges included, so that forced text is cut as the model is used to.
    `stop_ids` end an answer, where a grammar allows its end. `tokens`: the bytes of each token;
    `reserved_ids`: those that are no text, which a grammar names by their id or name only.
    """

    tokenizer_json: str
    stop_ids: tuple[int, ...]
    tokens: tuple[bytes, ...] = ()
    reserved_ids: tuple[int, ...] = ()

    def grammar_tokenizer(self, vocab_size: int) -> LLTokenizer:
        """For masks of `vocab_size` bits. Takes a part of a second. Raises ModelError."""
        from llguidance import LLTokenizer, TokenizerWrapper

        try:
            byte_exact = ByteExactTokenizer(self, vocab_size)
            stop_ids = [token for token in self.stop_ids if token < vocab_size]
            return LLTokenizer(TokenizerWrapper(byte_exact), eos_token=stop_ids or None)
        except Exception as error:  # both libraries raise bare ones
            raise ModelError(f"the tokenizer cannot be used for grammars: {error}") from error


class ByteExactTokenizer:
    """Cuts text into tokens with exactly its bytes, none of them reserved: the tokenizer of a
    `llguidance.TokenizerWrapper`. Safe to use from several threads."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        from tokenizers import Tokenizer

        self._backend = Tokenizer.from_str(vocabulary.tokenizer_json)
        tokens = list(vocabulary.tokens[:vocab_size])
        self.tokens = tokens + [b""] * (vocab_size - len(tokens))
        self.special_token_ids = [token for token in vocabulary.reserved_ids if token < vocab_size]
        self.eos_token_id = min(vocabulary.stop_ids, default=0)
        self._apart = frozenset(self.special_token_ids)
        self._cut = lru_cache(maxsize=_REMEMBERED)(self._cut_text)

    def __call__(self, data: bytes) -> list[int]:
        return list(self._cut(data))

    def _cut_text(self, data: bytes) -> tuple[int, ...]:
        ids = self._backend.encode(data.decode(), add_special_tokens=False).ids
        tokens = self.tokens
        if self._apart.isdisjoint(ids) and b"".join(tokens[i] for i in ids) == data:
            return tuple(ids)
        return tuple(self._longest(data))

    def _longest(self, data: bytes) -> Iterator[int]:
        """The longest token that fits, again and again; a byte that is no token is left out."""
        at = 0
        while at < len(data):
            ends = range(min(len(data), at + self._most_bytes), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is not None:
                yield self._by_bytes[data[at:end]]
            at = end or at + 1

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        ids = range(len(self.tokens) - 1, -1, -1)  # of equal ones the first
        return {self.tokens[i]: i for i in ids if i not in self._apart and self.tokens[i]}

    @cached_property
    def _most_bytes(self) -> int:
        return max(map(len, self._by_bytes), default=0)


def compile_grammar(tokenizer: LLTokenizer, value: str) -> LLMatcher:
    """A matcher at the start of a serialized grammar, its first mask computed once, so that the
    tables of the lexer are filled of which every copy starts. Raises GrammarError.

    The library bounds much of its work, but neither the time that intersected regular expressions
    take nor the depth of its recursion: what comes from a client is tried in a child process first
    (`grammar_child`).
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
    """What the library counts while it compiles a grammar and while it computes a mask. A grammar
    that runs into one of these bounds becomes an error of its request. A lexer state takes 1 to
    2 kB."""
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
