"""Encodes events as chat completion chunks, and complete answers as chat completions."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.api.codecs.agent_events import agent_frame, agentic_tool_call, file_object
from penstock.api.codecs.chat.round_text import RoundText, text_of
from penstock.api.codecs.chat.tool_call_form import CallForm, FunctionCall, ToolCalls
from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.openai_chunks import ChunkWriter, answer_json, session_field
from penstock.api.codecs.openai_envelope import KEEP_ALIVE, error_frames, token_logprobs
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
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    TurnEnded,
)
from penstock.dialog.fold import Answer, Choice, FailedRun

FIRST_DELTA: Final = b'"delta":{"role":"assistant","content":""}'
# First delta before a call or reasoning: clients treat any `content`, even "", as answer text.
FIRST_DELTA_NO_TEXT: Final = b'"delta":{"role":"assistant","content":null}'
LAST_DELTA: Final = b'"delta":{}'
TEXT: Final = b'"delta":{"content":'
TOOL_CALLS: Final = ToolCalls()


class ChatAnswers:
    """Writes chat answers. `form`: how tool calls are represented."""

    def __init__(self, form: CallForm) -> None:
        self._form = form

    def encoder(self, identity: AnswerIdentity, request: GenerateRequest) -> ChatStream:
        return ChatStream(identity, request, self._form)

    def encode(self, identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
        return encode(identity, request, answer, self._form)


class ChatStream:
    """Encodes one stream. The first chunk of a choice has its role; each further delta becomes one
    chunk."""

    def __init__(
        self, identity: AnswerIdentity, request: GenerateRequest, form: CallForm = TOOL_CALLS
    ) -> None:
        self._writer = ChunkWriter(identity, "chat.completion.chunk", request.num_choices)
        self._logprobs = request.top_logprobs is not None
        self._around: dict[int, tuple[bytes, bytes]] = {}
        self._form = form
        self._session = request.session
        self._calls: dict[tuple[int, int], int] = {}
        self._rounds = RoundText()

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                text = self._rounds.separated(event) if self._rounds.waiting else event.text
                if not self._logprobs:
                    before, after = self._around[event.choice]
                    return before + orjson.dumps(text) + after
                content = TEXT + orjson.dumps(text) + b"}"
                logprobs = orjson.dumps(logprobs_object(event.logprobs))
                return self._writer.chunk(event.choice, content, logprobs)
            case ReasoningDelta():
                thought = orjson.dumps(event.text)
                content = b'"delta":{"reasoning_content":' + thought + b"}"
                return self._writer.chunk(event.choice, content)
            case ArgumentsDelta():
                index = self._calls[event.choice, event.part]
                return self._delta(event.choice, self._form.continued(index, event.text))
            case PartStarted():
                first = FIRST_DELTA if event.kind == "text" else FIRST_DELTA_NO_TEXT
                self._rounds.part_started(event)
                return self._begin(event.choice, first) + self._part_started(event)
            case TurnEnded():
                finish = self._form.finish(event.finish)
                end = self._writer.end_choice(event.choice, LAST_DELTA, finish)
                return self._begin(event.choice, FIRST_DELTA) + end
            case RunStarted():
                self._writer.start(event)
                self._session = event.session or self._session
                return b""
            case RunEnded():
                return self._writer.end(event, self._session)
            case RunFailed():
                return self.fail(FailedRun(event))
            case PartEnded():
                self._rounds.part_ended(event)
                return b""
            case ToolCalling() | ToolCompleted() | ApprovalRequired() | FileProduced():
                # OpenAI's client reads each event as a chunk, and its users loop over `choices`.
                return agent_frame(event, {"choices": []})

    def fail(self, error: ServiceError) -> bytes:
        return error_frames(error)

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _begin(self, choice: int, delta: bytes) -> bytes:
        """Return the first chunk of a choice, which alone has the role; b"" if it was sent
        already."""
        if choice in self._around:
            return b""
        self._around[choice] = self._writer.around(choice, TEXT, b"}")
        return self._writer.chunk(choice, delta)

    def _part_started(self, event: PartStarted) -> bytes:
        if event.kind != "tool_call":
            return b""
        index = sum(1 for choice, _ in self._calls if choice == event.choice)
        self._calls[event.choice, event.part] = index
        return self._delta(event.choice, self._form.started(index, event.call_id, event.name))

    def _delta(self, choice: int, delta: dict[str, Any]) -> bytes:
        return self._writer.chunk(choice, b'"delta":' + orjson.dumps(delta))


def encode(
    identity: AnswerIdentity,
    request: GenerateRequest,
    answer: Answer,
    form: CallForm = TOOL_CALLS,
) -> bytes:
    """Return the JSON of a chat completion."""
    wanted = request.top_logprobs is not None
    choices = [
        {
            "index": choice.index,
            "message": _message(choice, form),
            "logprobs": logprobs_object(choice.logprobs) if wanted else None,
            "finish_reason": form.finish(choice.finish),
        }
        for choice in answer.choices
    ]
    return answer_json(identity, "chat.completion", answer, choices, _agent_fields(request, answer))


FUNCTION_CALLS: Final = ChatAnswers(FunctionCall())
"""Writes answers to requests with `functions`."""


def logprobs_object(logprobs: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> dict[str, Any]:
    """Return `{"content": [...]}` with one object per token: text, log-probability, bytes and
    alternatives."""
    return {"content": token_logprobs(logprobs)}


def _agent_fields(request: GenerateRequest, answer: Answer) -> dict[str, Any]:
    """Return the session, the calls of server tools and their files. Empty fields are left out."""
    runs = [run for choice in answer.choices for run in choice.tool_runs]
    files = [file for choice in answer.choices for file in choice.files]
    fields: dict[str, Any] = {**session_field(answer.session or request.session)}
    if runs:
        fields["agentic_tool_calls"] = [agentic_tool_call(run) for run in runs]
    if files:
        fields["files"] = [file_object(file) for file in files]
    return fields


def _message(choice: Choice, form: CallForm) -> dict[str, Any]:
    text = text_of(choice.parts)
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
        message |= form.whole(calls)
    return message
