"""Errors, usage, logprobs and SSE frames that OpenAI's dialects have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from penstock.base.errors import ServiceError
from penstock.dialog import TokenLogprob, Usage
from penstock.dialog.events import Finish

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


def error_body(error: ServiceError) -> bytes:
    """Return `{"error": {"message", "type", "param", "code"}}`."""
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.field,
                "code": error.code,
            }
        }
    )


def error_frames(error: ServiceError) -> bytes:
    """Return the frames that end an open stream with an error."""
    return b"data: " + error_body(error) + b"\n\n" + DONE


def openai_finish(finish: Finish) -> str:
    """Return the `finish_reason` for `finish`. The limit of tool rounds counts as a length limit,
    because clients accept no other value."""
    return "length" if finish == "rounds" else finish


def usage_object(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object: token counts, rates in tokens per second, and times in seconds."""
    total_s = usage.prompt_time_s + usage.completion_time_s
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "avg_tok_per_sec": _rate(usage.total_tokens, total_s),
        "avg_prompt_tok_per_sec": _rate(usage.prompt_tokens, usage.prompt_time_s),
        "avg_compl_tok_per_sec": _rate(usage.completion_tokens, usage.completion_time_s),
        "total_time_sec": round(total_s, 6),
        "total_prompt_time_sec": round(usage.prompt_time_s, 6),
        "total_completion_time_sec": round(usage.completion_time_s, 6),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def token_logprobs(logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """Return one object per token: text, log-probability, bytes and the most likely
    alternatives."""
    return [
        {
            **_token(token.token_bytes, token.logprob),
            "top_logprobs": [_token(value, logprob) for _, value, logprob in token.top],
        }
        for token in logprobs
    ]


def token_text(token: bytes) -> str:
    """Return the bytes of a token as text. Invalid UTF-8 becomes U+FFFD."""
    return token.decode("utf-8", "replace")


def _token(value: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token_text(value), "logprob": logprob, "bytes": list(value)}


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds > 0 else 0.0
