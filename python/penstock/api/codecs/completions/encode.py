"""Events -> completion chunks, and a folded answer -> a completion."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.envelope import (
    DONE,
    KEEP_ALIVE,
    error_frames,
    token_text,
    usage_object,
)
from penstock.base.errors import ServiceError
from penstock.dialog import (
    ArgumentsDelta,
    Event,
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
    TurnEnded,
)
from penstock.dialog.fold import Answer, Choice, FailedRun


class CompletionStream:
    """One stream. As in ChatStream, the last choice's last chunk waits for the usage.

    This dialect knows text only: what a template would call reasoning is text here.
    """

    def __init__(self, identity: AnswerIdentity, request: GenerateRequest) -> None:
        self._identity = identity
        self._n = request.n
        self._logprobs = request.top_logprobs is not None
        self._offsets: dict[int, int] = {}
        self._head = b""
        self._ended: set[int] = set()
        self._held = b""

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                logprobs = self._logprobs_json(event.choice, event.logprobs)
                return self._chunk(event.choice, orjson.dumps(event.text), logprobs)
            case ReasoningDelta():
                return self._chunk(event.choice, orjson.dumps(event.text))
            case TurnEnded():
                return self._turn_ended(event)
            case RunStarted():
                self._head = self._make_head(event)
                return b""
            case RunEnded():
                usage = b',"usage":' + orjson.dumps(usage_object(event.usage))
                return (self._held[:-3] + usage + b"}\n\n" if self._held else b"") + DONE
            case RunFailed():
                return self.fail(FailedRun(event))
            case PartStarted() | ArgumentsDelta() | PartEnded():
                return b""

    def fail(self, error: ServiceError) -> bytes:
        return error_frames(error)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _turn_ended(self, event: TurnEnded) -> bytes:
        self._ended.add(event.choice)
        chunk = self._chunk(event.choice, b'""', finish=orjson.dumps(event.finish))
        if len(self._ended) < self._n:
            return chunk
        self._held = chunk
        return b""

    def _chunk(
        self, choice: int, text: bytes, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        return b'%b{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._head,
            choice,
            text,
            logprobs,
            finish,
        )

    def _logprobs_json(self, choice: int, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        if not self._logprobs:
            return b"null"
        offset = self._offsets.get(choice, 0)
        encoded, self._offsets[choice] = logprobs_object(logprobs, offset)
        return orjson.dumps(encoded)

    def _make_head(self, event: RunStarted) -> bytes:
        envelope = orjson.dumps(
            {
                "id": self._identity.id,
                "object": "text_completion",
                "created": event.created,
                "model": event.model,
                "system_fingerprint": self._identity.fingerprint,
            }
        )
        return b"data: " + envelope[:-1] + b',"choices":['


def encode(identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
    """The JSON of a completion."""
    wanted = request.top_logprobs is not None
    return orjson.dumps(
        {
            "id": identity.id,
            "object": "text_completion",
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": identity.fingerprint,
            "choices": [
                {
                    "index": choice.index,
                    "text": _text(choice),
                    "logprobs": logprobs_object(choice.logprobs, 0)[0] if wanted else None,
                    "finish_reason": choice.finish,
                }
                for choice in answer.choices
            ],
            "usage": usage_object(answer.usage),
        }
    )


def logprobs_object(
    logprobs: tuple[TokenLogprob, ...] | list[TokenLogprob], offset: int
) -> tuple[dict[str, Any], int]:
    """The four parallel lists of the legacy form, and the offset (in characters) after them.

    `top_logprobs` holds the chosen token beside the alternatives. A character that several tokens
    make begins at the offset of its first token.
    """
    offsets = []
    for token in logprobs:
        offsets.append(offset)
        offset += sum(1 for byte in token.token_bytes if byte & 0xC0 != 0x80)
    return {
        "tokens": [token_text(token.token_bytes) for token in logprobs],
        "token_logprobs": [token.logprob for token in logprobs],
        "top_logprobs": [_top(token) for token in logprobs],
        "text_offset": offsets,
    }, offset


def _top(token: TokenLogprob) -> dict[str, float]:
    top: dict[str, float] = {}
    for _, value, logprob in token.top:
        top.setdefault(token_text(value), logprob)
    top.setdefault(token_text(token.token_bytes), token.logprob)
    return top


def _text(choice: Choice) -> str:
    return "".join(part.text for part in choice.parts if isinstance(part, Text | Reasoning))
