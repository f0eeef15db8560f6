"""Events -> chat completion chunks, and a folded answer -> a chat completion."""

from __future__ import annotations

from typing import Any, Final

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
    ToolCall,
    TurnEnded,
)
from penstock.dialog.fold import Answer, Choice, FailedRun

FIRST_DELTA: Final = b'{"role":"assistant","content":""}'


class ChatStream:
    """One stream. A chunk is `head`, a choice index, a delta, logprobs, a finish reason, `tail`;
    only the delta is built anew for each token.

    The chunk with the last choice's finish reason waits for RunEnded, which comes right after it,
    because that chunk carries the usage.
    """

    def __init__(self, identity: AnswerIdentity, request: GenerateRequest) -> None:
        self._identity = identity
        self._n = request.n
        self._logprobs = request.top_logprobs is not None
        self._head = b""
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._calls: dict[tuple[int, int], int] = {}
        self._held = b""

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                delta = b'{"content":' + orjson.dumps(event.text) + b"}"
                return self._chunk(event.choice, delta, self._logprobs_json(event.logprobs))
            case ReasoningDelta():
                delta = b'{"reasoning_content":' + orjson.dumps(event.text) + b"}"
                return self._chunk(event.choice, delta)
            case ArgumentsDelta():
                index = self._calls[event.choice, event.part]
                function = {"arguments": event.text}
                return self._call_chunk(event.choice, {"index": index, "function": function})
            case PartStarted():
                return self._begin(event.choice) + self._part_started(event)
            case TurnEnded():
                return self._begin(event.choice) + self._turn_ended(event)
            case RunStarted():
                self._head = self._make_head(event)
                return b""
            case RunEnded():
                usage = b',"usage":' + orjson.dumps(usage_object(event.usage))
                return (self._held[:-3] + usage + b"}\n\n" if self._held else b"") + DONE
            case RunFailed():
                return self.fail(FailedRun(event))
            case PartEnded():
                return b""

    def fail(self, error: ServiceError) -> bytes:
        return error_frames(error)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _begin(self, choice: int) -> bytes:
        """The first chunk of a choice, which alone names the role."""
        if choice in self._begun:
            return b""
        self._begun.add(choice)
        return self._chunk(choice, FIRST_DELTA)

    def _part_started(self, event: PartStarted) -> bytes:
        if event.kind != "tool_call":
            return b""
        index = sum(1 for choice, _ in self._calls if choice == event.choice)
        self._calls[event.choice, event.part] = index
        function = {"name": event.name, "arguments": ""}
        call = {"index": index, "id": event.call_id, "type": "function", "function": function}
        return self._call_chunk(event.choice, call)

    def _turn_ended(self, event: TurnEnded) -> bytes:
        self._ended.add(event.choice)
        chunk = self._chunk(event.choice, b"{}", finish=orjson.dumps(event.finish))
        if len(self._ended) < self._n:
            return chunk
        self._held = chunk
        return b""

    def _call_chunk(self, choice: int, call: dict[str, Any]) -> bytes:
        return self._chunk(choice, orjson.dumps({"tool_calls": [call]}))

    def _chunk(
        self, choice: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}]}\n\n' % (
            self._head,
            choice,
            delta,
            logprobs,
            finish,
        )

    def _logprobs_json(self, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        return orjson.dumps(logprobs_object(logprobs)) if self._logprobs else b"null"

    def _make_head(self, event: RunStarted) -> bytes:
        envelope = orjson.dumps(
            {
                "id": self._identity.id,
                "object": "chat.completion.chunk",
                "created": event.created,
                "model": event.model,
                "system_fingerprint": self._identity.fingerprint,
            }
        )
        return b"data: " + envelope[:-1] + b',"choices":['


def encode(identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
    """The JSON of a chat completion."""
    wanted = request.top_logprobs is not None
    return orjson.dumps(
        {
            "id": identity.id,
            "object": "chat.completion",
            "created": answer.created,
            "model": answer.model,
            "system_fingerprint": identity.fingerprint,
            "choices": [
                {
                    "index": choice.index,
                    "message": _message(choice),
                    "logprobs": logprobs_object(choice.logprobs) if wanted else None,
                    "finish_reason": choice.finish,
                }
                for choice in answer.choices
            ],
            "usage": usage_object(answer.usage),
        }
    )


def logprobs_object(logprobs: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> dict[str, Any]:
    """`{"content": [...]}`: each token with its text, its bytes and its alternatives."""
    return {
        "content": [
            {
                **_token(token.token_bytes, token.logprob),
                "top_logprobs": [_token(value, logprob) for _, value, logprob in token.top],
            }
            for token in logprobs
        ]
    }


def _token(value: bytes, logprob: float) -> dict[str, Any]:
    return {"token": token_text(value), "logprob": logprob, "bytes": list(value)}


def _message(choice: Choice) -> dict[str, Any]:
    text = "".join(part.text for part in choice.parts if isinstance(part, Text))
    reasoning = "".join(part.text for part in choice.parts if isinstance(part, Reasoning))
    calls = [part for part in choice.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "index": index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
    return message
