"""Checks requests: the ranges of all fields, and features that this build does not support.

Codecs only check types. This module checks ranges for every dialect and for embedded use.
"""

from __future__ import annotations

import math
from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    GenerateRequest,
    HostedTool,
    PythonTool,
    Sampling,
    SearchTool,
    ShellTool,
)
from penstock.dialog.ranges import (
    MAX_BIAS,
    MAX_BREAKERS,
    MAX_CHOICES,
    MAX_PENALTY,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TOP_LOGPROBS,
    MIN_DRY_BASE,
)

MAX_SEQUENCES: Final = 2048
"""Maximum number of sequences of one request: prompts times choices per prompt."""
MAX_STOP_CHARS: Final = 4096

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, MAX_TEMPERATURE),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": (-MAX_PENALTY, MAX_PENALTY),
    "repetition_penalty": (math.ulp(0.0), math.inf),
    "dry_multiplier": (0.0, math.inf),
    "dry_base": (MIN_DRY_BASE, math.inf),
    "dry_allowed_length": (0, math.inf),
}
MAX_BREAKER_CHARS: Final = 40


def check_request(request: GenerateRequest) -> None:
    """Check a request. Raises InvalidRequest that names the faulty field."""
    given = (request.messages is not None) + (request.prompt is not None) + bool(request.prompts)
    if given != 1:
        raise InvalidRequest("give either messages or a prompt", field="messages")
    if request.messages is not None and not request.messages:
        raise InvalidRequest("messages must not be empty", field="messages")
    _check_tools(request)
    _check_sampling(request.sampling)
    _check_counts(request)
    _check_stops(request.stop)
    _check_served(request)


def _check_sampling(sampling: Sampling) -> None:
    for field, (least, most) in _RANGES.items():
        value = getattr(sampling, field)
        if value is not None and not (math.isfinite(value) and least <= value <= most):
            if field == "repetition_penalty":
                raise InvalidRequest(f"{field} must be a number above 0", field=field)
            if most == math.inf:
                raise InvalidRequest(f"{field} must be a number from {least:g} up", field=field)
            raise InvalidRequest(f"{field} must be from {least:g} to {most:g}", field=field)
    _check_breakers(sampling.dry_sequence_breakers or ())


def check_bias(bias: dict[int, float], vocab_size: int) -> None:
    """Check a logit bias. Raises InvalidRequest for a token outside the vocabulary, or a bias that
    is too large."""
    for token, value in bias.items():
        if not 0 <= token < vocab_size:
            raise InvalidRequest(
                f"logit_bias has token {token}; ids are from 0 to {vocab_size - 1}",
                field="logit_bias",
            )
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise InvalidRequest(
                f"logit_bias must be from {-MAX_BIAS:g} to {MAX_BIAS:g}", field="logit_bias"
            )


def _check_breakers(breakers: tuple[str, ...]) -> None:
    field = "dry_sequence_breakers"
    if len(breakers) > MAX_BREAKERS:
        raise InvalidRequest(f"{field} must have at most {MAX_BREAKERS} strings", field=field)
    for index, breaker in enumerate(breakers):
        if not 1 <= len(breaker) <= MAX_BREAKER_CHARS:
            raise InvalidRequest(
                f"{field}[{index}] must have from 1 to {MAX_BREAKER_CHARS} characters",
                field=f"{field}[{index}]",
            )


def _check_counts(request: GenerateRequest) -> None:
    if not 1 <= request.n <= MAX_CHOICES:
        raise InvalidRequest(f"n must be from 1 to {MAX_CHOICES}", field="n")
    best_of = request.n if request.best_of is None else request.best_of
    if not request.n <= best_of <= MAX_CHOICES:
        raise InvalidRequest(f"best_of must be from n to {MAX_CHOICES}", field="best_of")
    if best_of * max(1, len(request.prompts)) > MAX_SEQUENCES:
        raise InvalidRequest(
            f"prompts times choices must be at most {MAX_SEQUENCES}", field="prompt"
        )
    least = 0 if request.echo else 1
    if request.limits.max_tokens is not None and request.limits.max_tokens < least:
        raise InvalidRequest(f"max_tokens must be at least {least}", field="max_tokens")
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}", field="top_logprobs"
        )


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop must have at most {MAX_STOPS} strings", field="stop")
    for index, stop in enumerate(stops):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"stop[{index}] must have from 1 to {MAX_STOP_CHARS} characters",
                field=f"stop[{index}]",
            )


def _check_served(request: GenerateRequest) -> None:
    for tool in request.hosted[:1]:
        raise tool_is_off(tool)
    if request.files:
        raise _unavailable(
            "files",
            "output files need tools that run on the server (--enable-code-execution,"
            " --enable-shell)",
        )
    if request.echo and request.messages is not None:
        raise InvalidRequest("echo goes with a prompt, not with messages", field="echo")
    if request.answer_prefix and request.messages is None:
        raise InvalidRequest(
            "an answer prefix goes with messages, not with a prompt", field="messages"
        )
    if request.suffix and request.messages is not None:
        raise InvalidRequest("suffix goes with a prompt, not with messages", field="suffix")
    if request.echo and request.suffix and request.top_logprobs is not None:
        raise _unavailable("echo", "with logprobs, a prompt must not have a suffix")


def _check_tools(request: GenerateRequest) -> None:
    policy = request.tool_policy
    if policy.mode == "required" and not (request.tools or request.hosted):
        raise InvalidRequest("tool_choice requires a call, but there are no tools", field="tools")
    for name in policy.names:
        if all(tool.name != name for tool in request.tools):
            raise InvalidRequest(f"tool_choice names no tool: {name[:80]!r}", field="tool_choice")


def tool_is_off(tool: HostedTool) -> InvalidRequest:
    """Return the error for a request that asks for a server tool that is not turned on."""
    return _unavailable("hosted", _OFF[type(tool)])


def _off(what: str, client: str, option: str) -> str:
    return (
        f"this server runs no {what} (the operator's option is {option}); turn {client} off in the"
        " client"
    )


_OFF: Final[dict[type[HostedTool], str]] = {
    SearchTool: _off(
        "web search", '`web_search` (Codex: web_search = "disabled")', "--enable-search"
    ),
    PythonTool: _off("Python", "`code_interpreter`", "--enable-code-execution"),
    ShellTool: _off("shell", "`shell`", "--enable-shell"),
}


def _unavailable(field: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"{field} cannot be used: {why}", field=field, code="unsupported_value")
