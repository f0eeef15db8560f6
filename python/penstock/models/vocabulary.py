"""A model's vocabulary as a grammar sees it, and the compilation of a grammar under bounds.

Both sides of the engine's wall compile, in the same way: the text side to refuse a bad grammar
before it travels, the engine to compute masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.base.errors import ModelError

if TYPE_CHECKING:  # no start waits for the library: only constraints need it
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer


class GrammarError(Exception):
    """A grammar cannot be used; the text says why, in the words of the library."""


class Vocabulary(msgspec.Struct, frozen=True):
    """A tokenizer as plain data.

    `tokenizer_json`: the serialization of the `tokenizers` library, merges included, so that
    forced text is cut into the tokens that the model is used to. `stop_ids` end an answer, where a
    grammar allows its end.
    """

    tokenizer_json: str
    stop_ids: tuple[int, ...]

    def grammar_tokenizer(self, vocab_size: int) -> LLTokenizer:
        """For masks of `vocab_size` bits. Takes a part of a second. Raises ModelError."""
        from llguidance import LLTokenizer

        stop_ids = [token for token in self.stop_ids if token < vocab_size]
        try:
            return LLTokenizer(self.tokenizer_json, n_vocab=vocab_size, eos_token=stop_ids or None)
        except ValueError as error:
            raise ModelError(f"the tokenizer cannot be used for grammars: {error}") from error


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
