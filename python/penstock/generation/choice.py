"""Turns the token outputs of one choice into events. This is the hot path of every answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from penstock.base.errors import EngineFault, InvalidRequest
from penstock.dialog import Event, TokenLogprob, TurnEnded, Usage
from penstock.dialog.events import Finish
from penstock.engine.types import TokenDelta, TokenOutput
from penstock.generation.answer_format import AnswerFormat
from penstock.generation.echo import Echo
from penstock.generation.parts import Parts
from penstock.generation.repeated_calls import RepeatedCallFilter
from penstock.generation.stop_filter import StopFilter
from penstock.grammar.guides import DEAD_END, TOO_COMPLEX
from penstock.text import IncrementalDetokenizer, Tokenizer
from penstock.text.tool_parsers import (
    CallEnd,
    CallStart,
    ParsedArguments,
    ParsedReasoning,
    ParsedText,
    ParserOutput,
)

log = logging.getLogger(__name__)


class Choice:
    """Turns the token outputs of one sequence into the events of one choice. Create the object just
    before the sequence is submitted, since its times start then.

    Text is held back while a code point is incomplete, or while the text may be the start of a stop
    string or (if `answer_format` has a parser) of a tool call. Stop strings are searched in the
    text of the answer, not in reasoning and calls. A token's logprob is part of the delta that
    shows the token's first character. Logprobs of tokens in reasoning and calls, and of tokens that
    a stop string cuts off, are not shown.

    - `max_calls`: number of tool calls after which the answer ends, None for no limit.
    - `repeats`: ends the answer before it repeats a call, None to allow repetition.
    - `ended`: True after the event TurnEnded.
    - `logprob_sum`: sum of the logprobs of all tokens.
    """

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        answer_format: AnswerFormat,
        *,
        prompt_ids: tuple[int, ...],
        stops: tuple[str, ...],
        echo: Echo | None,
        with_logprobs: bool,
        max_calls: int | None,
        repeats: RepeatedCallFilter | None,
    ) -> None:
        parser = answer_format.parser()
        self.index = index
        self.ended = False
        self.usage = Usage(prompt_tokens=len(prompt_ids))
        self.finish: Finish = "stop"
        self.logprob_sum = 0.0
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, prompt_ids[-1], answer_format.shown_control
        )
        self._parser = parser
        self._parts = Parts(index)
        # The text of a plain answer is shown at once: no parser, stop strings or logprobs.
        self._plain = parser is None and not stops and not with_logprobs
        self._only_text = False  # the answer is plain and its text part is open
        self._shown = StopFilter(self._parts, stops, keeps_all=parser is None)
        self._submitted_s = time.monotonic()
        self._first_s: float | None = None
        self._echo = echo
        self._echo_chars = len(echo.text) if echo is not None else 0
        self._cached_tokens = 0
        self._with_logprobs = with_logprobs
        self._max_calls = max_calls
        self._repeats = repeats
        self._called_enough = False
        self._num_tokens = 0
        self._num_reasoning = 0
        self._num_decoded = 0  # characters from the detokenizer

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    def take(self, output: TokenOutput) -> list[Event]:
        """Return the events of one token output. Raises EngineFault if the engine failed the
        sequence, and InvalidRequest if the sequence's grammar cannot be followed."""
        if self._only_text and output.finish is None:
            text = self._text_of(output.tokens)
            return [self._parts.more_text(text)] if text else []
        self._add(output)
        return self._parts.take()

    def _add(self, output: TokenOutput) -> None:
        if self.ended:
            return
        if output.error == TOO_COMPLEX:
            raise InvalidRequest(
                f"{TOO_COMPLEX}; make it simpler", field="grammar", code="grammar_too_complex"
            )
        if output.error == DEAD_END:
            log.warning("the grammar of %s has a dead end; its answer fails", output.id)
            raise InvalidRequest(DEAD_END, field="grammar", code="grammar_dead_end")
        if output.finish == "error" or output.finish == "abort":
            log.error("the engine ended %s with %s: %s", output.id, output.finish, output.error)
            raise EngineFault("the engine failed this request")
        if output.cached_tokens is not None:
            self._cached_tokens = output.cached_tokens
        if self._echo is not None:
            self._echo.add(output.prompt)
        if self._first_s is None:
            if not output.tokens and output.finish is None:
                return  # the prompt is still being prefilled
            self._start(output)
        tokens = output.tokens
        if self._plain:
            text = self._text_of(tokens)
            if text:
                self._parts.text(text)
            if output.finish is None:  # only the engine can end a plain answer
                self._only_text = self._parts.in_text
                return
        else:
            for token in tokens:
                self._token(token)
                if self._cut_short:
                    break
        called_enough = self._called_enough  # a call that ends unfinished does not count
        if output.finish is not None and not self._cut_short:
            self._finish_text()
        if output.finish is not None or self._cut_short:
            self._end(output.finish == "length" and not called_enough, output.step_time_s)

    @property
    def _cut_short(self) -> bool:
        """Whether the answer ends before the engine's sequence does."""
        return self._called_enough or self._shown.matched is not None

    def _start(self, output: TokenOutput) -> None:
        self._first_s = (
            output.step_time_s if output.first_step_time_s is None else output.first_step_time_s
        )
        if self._echo is not None:
            self._parts.text(self._echo.text, self._echo.logprobs())

    def _text_of(self, tokens: Sequence[TokenDelta]) -> str:
        """Count and decode the tokens of a plain answer. Returns their text."""
        self._num_tokens += len(tokens)
        if tokens and tokens[0].logprob is not None:
            self.logprob_sum += sum(token.logprob or 0.0 for token in tokens)
        return self._detokenizer.push_all([token.token_id for token in tokens])

    def _token(self, token: TokenDelta) -> None:
        self._num_tokens += 1
        text = self._detokenizer.push(token.token_id)
        if token.logprob is not None:
            self.logprob_sum += token.logprob
            if self._with_logprobs:
                self._shown.pending.append((self._num_decoded, self._logprob(token)))
        start = self._num_decoded
        self._num_decoded += len(text)
        if self._parser is None:
            if text:
                self._shown.say(text, start)
            return
        if text:
            self._show(self._parser.push(text))
        self._num_reasoning += self._parser.reasoning

    def _show(self, pieces: list[ParserOutput]) -> None:
        parts, shown = self._parts, self._shown
        if self._repeats is not None:
            pieces = self._repeats.before_repeat(pieces)
            self._called_enough = self._repeats.found
        for piece in pieces:
            if isinstance(piece, ParsedText):
                shown.say(piece.text, piece.at)
                if shown.matched is not None:
                    return
                continue
            shown.flush()
            match piece:
                case ParsedReasoning():
                    parts.reasoning(piece.text)
                case CallStart():
                    parts.call(piece.name, piece.call_id)
                case ParsedArguments():
                    parts.arguments(piece.text)
                case CallEnd():
                    if piece.whole:
                        parts.end_call()
                    else:
                        parts.break_call_off()
                    if parts.num_calls == self._max_calls:
                        self._called_enough = True
                        return

    def _finish_text(self) -> None:
        """Show the text that the parser and the stop strings have held back, at the end of the
        sequence. An incomplete character at the end is dropped: a client that sends the answer back
        would put U+FFFD into the prompt."""
        if self._parser is not None:
            self._show(self._parser.finish())
        if not self._cut_short:
            self._shown.flush(last=True)

    def _end(self, is_length: bool, now_s: float) -> None:
        assert self._first_s is not None
        matched = self._shown.matched
        if is_length and matched is None:
            self.finish = "length"
        elif matched is None and 0 < self._parts.num_calls == self._parts.num_whole_calls:
            self.finish = "tool_calls"
        self.ended = True
        self.usage = Usage(
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self._num_tokens,
            cached_tokens=self._cached_tokens,
            reasoning_tokens=self._num_reasoning,
            prompt_time_s=max(0.0, self._first_s - self._submitted_s),
            completion_time_s=max(0.0, now_s - self._first_s),
        )
        self._parts.end_all(TurnEnded(self.index, self.finish, self.usage, matched))

    def _logprob(self, token: TokenDelta) -> TokenLogprob:
        assert token.logprob is not None
        token_bytes = self._tokenizer.token_bytes
        top = tuple((index, token_bytes(index), value) for index, value in token.top)
        offset = self._echo_chars + self._num_decoded
        return TokenLogprob(token.token_id, token_bytes(token.token_id), token.logprob, top, offset)
