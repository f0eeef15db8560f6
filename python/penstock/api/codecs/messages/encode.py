"""Encodes a complete answer as an Anthropic message; also fields that messages and streams
share."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final

import orjson

from penstock.api.codecs.agent_events import file_object
from penstock.api.codecs.dialect import AnswerIdentity
from penstock.api.codecs.messages.server_tool_blocks import ToolUsage, call_block, result_block
from penstock.api.codecs.openai_chunks import generation_field, session_field
from penstock.base.errors import ServiceError
from penstock.dialog import (
    GenerateRequest,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolRun,
    Usage,
)
from penstock.dialog.events import Finish
from penstock.dialog.fold import Answer

# HTTP status -> Anthropic's error type, from which clients choose their exception class.
ERROR_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
STOP_REASONS: Final[dict[Finish, str]] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "rounds": "pause_turn",
    "error": "end_turn",
}


def encode(identity: AnswerIdentity, request: GenerateRequest, answer: Answer) -> bytes:
    """Return the JSON of a complete message."""
    choice = answer.choices[0]
    tool_usage = ToolUsage()
    for run in choice.tool_runs:
        tool_usage.add(run)
    session = answer.session or request.session
    message = {
        **message_head(identity, answer.model, answer.adapter_revision, session),
        "content": [block for part in choice.parts for block in _blocks(part)],
        **stop_fields(choice.finish, choice.stop_sequence),
        "usage": {**usage_object(answer.usage), **tool_usage.fields()},
    }
    if choice.files:
        message["files"] = [file_object(file) for file in choice.files]
    return orjson.dumps(message)


def message_head(
    identity: AnswerIdentity, model: str, adapter_generation: str | None, session: str | None
) -> dict[str, Any]:
    """Return the fields of a message that precede its content."""
    return {
        "id": identity.id,
        "type": "message",
        "role": "assistant",
        "model": model,
        **generation_field(adapter_generation),
        **session_field(session),
    }


def stop_fields(finish: Finish | None, stop_sequence: str | None) -> dict[str, Any]:
    """Return `stop_reason` and `stop_sequence`, both null while the answer is being generated."""
    reason = "stop_sequence" if stop_sequence is not None else finish and STOP_REASONS[finish]
    return {"stop_reason": reason, "stop_sequence": stop_sequence}


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object. `input_tokens` excludes the tokens that came from the prefix
    cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block: a digest of its text. Clients drop thinking blocks
    without a signature."""
    return base64.b64encode(hashlib.blake2b(thinking.encode(), digest_size=48).digest()).decode()


def error_body(error: ServiceError, request_id: str) -> bytes:
    """Return `{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = ERROR_TYPES.get(error.status, default)
    inner = {"type": kind, "message": error.message}
    return orjson.dumps({"type": "error", "error": inner, "request_id": request_id})


def _blocks(part: Part | ToolRun) -> list[dict[str, Any]]:
    """Return the content blocks of a part. Return [] for an empty part and for an incomplete tool
    call: `input` must be a complete object, and clients run every call in a
    message."""
    match part:
        case Text(text) if text:
            return [{"type": "text", "text": text}]
        case Reasoning(text) if text:
            return [{"type": "thinking", "thinking": text, "signature": signature_of(text)}]
        case ToolCall(whole=True):
            arguments = orjson.Fragment(part.arguments or "{}")
            return [{"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}]
        case ToolRun():
            return [call_block(part.call, part.tool), result_block(part)]
        case _:
            return []
