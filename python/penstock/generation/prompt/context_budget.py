"""A prompt as token ids, and its share of the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.errors import ContextLengthExceeded, InvalidRequest
from penstock.dialog import GenerateRequest

LONGEST_TOKEN_CHARS: Final = 512
"""Longest text of a token: a longer text per token cannot fit."""
DEFAULT_ROOM_TOKENS: Final = 512
"""Room that truncation leaves for the answer if the request has no `max_tokens`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that fits the context. `max_tokens`: the rest of the context, or less if the request
    says so. `stop_ids`: tokens that end this answer beside those that end any. `echo`: the text of
    a prompt that the answers repeat; `echoed_control`: control tokens that it spells out; `lead`:
    tokens before it that are not part of it."""

    token_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()
    echo: str = ""
    echoed_control: frozenset[int] = frozenset()
    lead: int = 0


class ContextBudget:
    """The share of the context for one prompt: `room` tokens, and at most `most_chars` characters.
    `truncate`: a prompt that is too long is cut."""

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
        """Whether a text of this many characters is too long in any tokenization."""
        return chars > self.most_chars

    def fits(self, ids: Sequence[int]) -> bool:
        return len(ids) <= self.room

    def cut(self, ids: list[int], lead: int = 0) -> list[int]:
        """Return the end of a prompt that may be truncated, after its first `lead` tokens. Raises
        ContextLengthExceeded otherwise."""
        if self.fits(ids):
            return ids
        if not self.truncate:
            raise self.exceeded(ids)
        lead = min(lead, self.room)
        return [*ids[:lead], *ids[len(ids) - self.room + lead :]]

    def prompt(self, ids: Sequence[int]) -> Prompt:
        """Return the prompt of `ids`, which fit. Raises InvalidRequest if there are none: messages
        may render to no text, and an answer needs a prompt."""
        if not ids:
            raise InvalidRequest("the prompt must not be empty", field=self._field)
        left = self._max_model_len - len(ids)
        most = left if self._max_tokens is None else min(self._max_tokens, left)
        return Prompt(tuple(ids), most)

    def exceeded(self, ids: Sequence[int] | None) -> ContextLengthExceeded:
        """Return the error in OpenAI's and Anthropic's wording, so that coding agents compact the
        prompt."""
        context = self._max_model_len
        tokens = str(len(ids)) if ids is not None else f"over {context}"
        return ContextLengthExceeded(
            f"prompt is too long: {tokens} tokens > {context - self._least} maximum; shorten"
            f" `{self._field}`: this model's maximum context length is {context} tokens, with an"
            f" answer of at least {self._least}",
            field=self._field,
        )
