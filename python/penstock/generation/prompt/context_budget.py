"""Defines a tokenized prompt and limits its length to the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import GenerateRequest
from penstock.engine.types import MediaItem

LONGEST_TOKEN_CHARS: Final = 512
"""Upper bound of the characters of a token: a text with more characters per token cannot fit."""
DEFAULT_ROOM_TOKENS: Final = 512
"""Tokens that truncation leaves for the answer if the request has no `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits the context.

    - `token_ids`: the tokens of the prompt.
    - `max_tokens`: maximum tokens of the answer: the rest of the context, or the request's limit if
      it is lower.
    - `stop_ids`: tokens that end this answer, in addition to the tokens that end any answer.
    - `echo`: the text of the prompt if the answers echo it, else "".
    - `echoed_control`: control tokens that are part of `echo`.
    - `lead`: number of tokens at the start of the prompt that are not part of `echo`.
    - `media`, `rope_positions`: see `TokenRequest`.
    """

    token_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    echo: str = ""
    echoed_control: frozenset[int] = frozenset()
    lead: int = 0
    media: tuple[MediaItem, ...] = ()
    rope_positions: bytes = b""


class ContextBudget:
    """Limits the length of a request's prompt.

    - `room`: tokens that the prompt may have.
    - `most_chars`: upper bound of the characters of a prompt that fits.
    - `truncate`: whether a prompt that is too long is truncated.
    """

    def __init__(self, request: GenerateRequest, max_model_len: int) -> None:
        self.truncate = request.limits.truncate
        self.most_chars = max_model_len * LONGEST_TOKEN_CHARS
        self._field = "messages" if request.messages is not None else "prompt"
        self._max_model_len = max_model_len
        self._max_tokens = wanted = request.limits.max_tokens
        self._least = 1 if wanted is None else min(wanted, 1)
        if self.truncate:
            most = DEFAULT_ROOM_TOKENS if wanted is None else wanted
            self.room = max_model_len - min(most, max_model_len // 2)
        else:
            self.room = max_model_len - self._least

    def cannot_fit(self, chars: int) -> bool:
        """Whether a text with this many characters is too long however it is tokenized."""
        return chars > self.most_chars

    def fits(self, ids: Sequence[int]) -> bool:
        return len(ids) <= self.room

    def cut(self, ids: list[int], lead: int = 0) -> list[int]:
        """Return a prompt's tokens, truncated to `room`: the first `lead` tokens and the end are
        kept. Raises ContextLengthExceeded if the prompt is too long and must not be truncated."""
        if self.fits(ids):
            return ids
        if not self.truncate:
            raise self.exceeded(ids)
        lead = min(lead, self.room)
        return [*ids[:lead], *ids[len(ids) - self.room + lead :]]

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """Return the prompt with the tokens `ids`, which must fit. Raises InvalidRequest if `ids`
        is empty, since messages may render to no text."""
        if not ids:
            raise InvalidRequest("the prompt must not be empty", field=self._field)
        left = self._max_model_len - len(ids)
        most = left if self._max_tokens is None else min(self._max_tokens, left)
        return Prompt(tuple(ids), most)

    def exceeded(self, ids: Sequence[int] | None) -> ContextLengthExceeded:
        """Return the error for a prompt that is too long. `ids`: its tokens, None if not known.

        The wording is that of OpenAI and Anthropic, which makes coding agents compact the prompt.
        """
        context = self._max_model_len
        tokens = str(len(ids)) if ids is not None else f"over {context}"
        return ContextLengthExceeded(
            f"prompt is too long: {tokens} tokens > {context - self._least} maximum; shorten"
            f" `{self._field}`: this model's maximum context length is {context} tokens, with an"
            f" answer of at least {self._least}",
            field=self._field,
        )
