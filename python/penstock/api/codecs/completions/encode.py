"""Encodes events as text completion chunks, and complete answers as text completions."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.openai_chunks import ChunkWriter, answer_json
from penstock.api.codecs.openai_envelope import KEEP_ALIVE, error_frames, openai_finish, token_text
from penstock.base.errors import ServiceError
from penstock.dialog import (
    ApprovalRequired,
    ArgumentsDelta,
    Event,
    FileProduced,
    GenerateRequest,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCalling,
    ToolCompleted,
    TurnEnded,
)
from penstock.dialog.fold import Answer, Choice, FailedRun

KIND: Final = "text_completion"
LAST_TEXT: Final = b'"text":""'


class CompletionStream:
    """Encodes one stream. This dialect has no field for reasoning, so reasoning is sent as text."""

    def __init__(self, identity: AnswerIdentity, request: GenerateRequest) -> None:
        self._writer = ChunkWriter(identity, KIND, request.num_choices)
        self._logprobs = request.top_logprobs is not None

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                content = b'"text":' + orjson.dumps(event.text)
                logprobs = b"null"
                if self._logprobs:
                    logprobs = orjson.dumps(logprobs_object(event.logprobs))
                return self._writer.chunk(event.choice, content, logprobs)
            case ReasoningDelta():
                return self._writer.chunk(event.choice, b'"text":' + orjson.dumps(event.text))
            case TurnEnded():
                return self._writer.end_choice(event.choice, LAST_TEXT, openai_finish(event.finish))
            case RunStarted():
                self._writer.start(event)
                return b""
            case RunEnded():
                return self._writer.end(event)
            case RunFailed():
                return self.fail(FailedRun(event))
            case PartStarted() | ArgumentsDelta() | PartEnded():
                return b""
            case ToolCalling() | ToolCompleted() | ApprovalRequired() | FileProduced():
                return b""  # completions run no tools

    def fail(self, error: ServiceError) -> bytes:
        return error_frames(error)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE


def encode(identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
    """Return the JSON of a text completion."""
    wanted = request.top_logprobs is not None
    choices = [
        {
            "index": choice.index,
            "text": _text(choice),
            "logprobs": logprobs_object(choice.logprobs) if wanted else None,
            "finish_reason": openai_finish(choice.finish),
        }
        for choice in answer.choices
    ]
    return answer_json(identity, KIND, answer, choices)


def logprobs_object(logprobs: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> dict[str, Any]:
    """Return the token logprobs as four parallel lists.

    `top_logprobs` holds the alternatives and the token itself. The first token of an echoed prompt
    has null in `token_logprobs` and `top_logprobs`. Tokens that share a character have the same
    offset.
    """
    return {
        "tokens": [token_text(token.token_bytes) for token in logprobs],
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [_top(token) for token in logprobs],
        "text_offset": [token.offset for token in logprobs],
    }


def _top(token: TokenLogprob) -> dict[str, float] | None:
    if token.logprob is None:
        return None
    top: dict[str, float] = {}
    for _, value, logprob in token.top:
        top.setdefault(token_text(value), logprob)
    top.setdefault(token_text(token.token_bytes), token.logprob)
    return top


def _text(choice: Choice) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, Text | Reasoning))
