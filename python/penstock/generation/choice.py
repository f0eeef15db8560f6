"""One choice: token chunks of the engine in, events out. The hot path of every answer."""

from __future__ import annotations

import logging

from penstock.base.errors import EngineFault
from penstock.dialog import (
    Event,
    PartEnded,
    PartStarted,
    Text,
    TextDelta,
    TokenLogprob,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import Finish
from penstock.engine.types import TokenChunk, TokenDelta
from penstock.text import IncrementalDetokenizer, StopStrings, Tokenizer

log = logging.getLogger(__name__)


class Choice:
    """The events of one of a request's `n` answers, in order; `ended` after its TurnEnded.

    Text is shown as soon as it is whole: not while a code point is unfinished, nor while it may be
    the start of a stop string. A token's logprob goes with the delta that shows its first
    character; tokens cut off by a stop string have none.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        *,
        prompt_tokens: int,
        submitted_s: float,
        after: int | None = None,
        stops: tuple[str, ...] = (),
        echo: str = "",
    ) -> None:
        self.index = index
        self.ended = False
        self.usage = Usage(prompt_tokens=prompt_tokens)
        self.finish: Finish = "stop"
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(tokenizer, after)
        self._stops = StopStrings(stops) if stops else None
        self._submitted_s = submitted_s
        self._first_s: float | None = None
        self._echo = echo
        self._texts: list[str] = []
        self._started = False
        self._num_tokens = 0
        self._num_decoded = 0  # characters that came out of the detokenizer
        self._num_shown = 0  # characters of those that went into deltas
        self._pending: list[tuple[int, TokenLogprob]] = []  # (position of its first character, ..)

    def take(self, chunk: TokenChunk) -> list[Event]:
        """The events of one chunk. Raises EngineFault where the engine gave up on it."""
        if chunk.finish == "error" or chunk.finish == "abort":
            log.error("the engine ended %s with %s: %s", chunk.id, chunk.finish, chunk.error)
            raise EngineFault("the engine failed this request")
        events: list[Event] = []
        if not self._started:
            self._start(chunk, events)
        text = self._decode(chunk.tokens)
        stops = self._stops
        matched = stops.matched if stops is not None else None
        over = chunk.finish is not None or matched is not None
        if over and matched is None:
            text += self._rest()
            matched = stops.matched if stops is not None else None
        if text or (over and self._pending):
            self._show(text, events, over=over, cut=matched is not None)
        if over:
            length = matched is None and chunk.finish == "length"
            self._end("length" if length else "stop", matched, chunk.step_time_s, events)
        return events

    def _start(self, chunk: TokenChunk, events: list[Event]) -> None:
        self._started = True
        self._first_s = chunk.step_time_s
        self._cached_tokens = chunk.cached_tokens or 0
        events.append(PartStarted(self.index, 0, "text"))
        if self._echo:
            self._texts.append(self._echo)
            events.append(TextDelta(self.index, 0, self._echo))

    def _decode(self, tokens: tuple[TokenDelta, ...]) -> str:
        """What these tokens let be shown; stops behind the token that completes a stop string."""
        shown = ""
        stops = self._stops
        for token in tokens:
            self._num_tokens += 1
            piece = self._detokenizer.push(token.token_id)
            if token.logprob is not None:
                self._pending.append((self._num_decoded, self._logprob(token)))
            self._num_decoded += len(piece)
            if stops is None:
                shown += piece
            elif piece:
                shown += stops.push(piece)
                if stops.matched is not None:
                    break
        return shown

    def _rest(self) -> str:
        """What was held back, at the end of the sequence."""
        tail = self._detokenizer.finish()
        self._num_decoded += len(tail)
        if self._stops is None:
            return tail
        shown = self._stops.push(tail) if tail else ""
        return shown if self._stops.matched is not None else shown + self._stops.finish()

    def _show(self, text: str, events: list[Event], *, over: bool, cut: bool) -> None:
        self._texts.append(text)
        self._num_shown += len(text)
        logprobs: tuple[TokenLogprob, ...] = ()
        if self._pending:
            shown = self._num_shown
            count = len(self._pending)
            if cut or not over:
                count = sum(1 for position, _ in self._pending if position < shown)
            logprobs = tuple(logprob for _, logprob in self._pending[:count])
            del self._pending[:count]
        if text or logprobs:
            events.append(TextDelta(self.index, 0, text, logprobs))

    def _end(
        self, finish: Finish, stop_sequence: str | None, now_s: float, events: list[Event]
    ) -> None:
        assert self._first_s is not None
        self.ended = True
        self.finish = finish
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=self._cached_tokens,
            prompt_time_s=max(0.0, self._first_s - self._submitted_s),
            completion_time_s=max(0.0, now_s - self._first_s),
        )
        events.append(PartEnded(self.index, 0, Text("".join(self._texts))))
        events.append(TurnEnded(self.index, finish, self.usage, stop_sequence))

    def _logprob(self, token: TokenDelta) -> TokenLogprob:
        assert token.logprob is not None
        token_bytes = self._tokenizer.token_bytes
        top = tuple((index, token_bytes(index), value) for index, value in token.top)
        return TokenLogprob(token.token_id, token_bytes(token.token_id), token.logprob, top)
