"""The body of a chat completion request -> GenerateRequest."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.chat.messages import decode_messages
from penstock.api.codecs.constraint import decode_constraint
from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.fields import Fields, decode_object
from penstock.api.codecs.sampling import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    decode_adapter,
    decode_limits,
    decode_sampling,
    decode_stop,
)
from penstock.api.codecs.tools import decode_tool_choice, decode_tools
from penstock.dialog import GenerateRequest, ReasoningPolicy

# Accepted with a value of any type, and without effect; so is every field named nowhere here.
# (`seed` is not in this list: an integer makes the draw reproducible, any other value is ignored.)
IGNORED: Final = (
    "user",
    "stream_options",
    "metadata",
    "service_tier",
    "parallel_tool_calls",
    "store",
)
# Refused, unless the value is null, false or empty: to ignore them would change what is answered.
REFUSED: Final = {
    "web_search_options": "web search is not enabled on this server",
    "session_id": "sessions are not available on this server",
    "files": "output files need code execution, which is not enabled on this server",
    "enable_shell": "the shell tool is not enabled on this server",
}
PERMISSIONS: Final = ("auto", "ask", "deny")
EFFORTS: Final = ("off", "none", "low", "medium", "high", "xhigh", "max")


def decode(body: bytes) -> Decoded:
    """Raises InvalidRequest naming the field that is wrong."""
    fields = decode_object(body)
    stream = fields.boolean("stream") or False
    _refuse_unavailable(fields)
    _check_permissions(fields, stream)
    tools = decode_tools(fields)
    messages, prompt = decode_messages(fields)
    request = GenerateRequest(
        model=fields.string("model") or None,
        adapter=decode_adapter(fields),
        messages=messages,
        prompt=prompt,
        tools=tools,
        tool_policy=decode_tool_choice(fields, tools),
        sampling=decode_sampling(fields),
        constraint=decode_constraint(fields),
        limits=decode_limits(fields),
        reasoning=_reasoning(fields),
        stop=decode_stop(fields),
        n=_default(fields.integer("n", 1, MAX_N), 1),
        top_logprobs=_top_logprobs(fields),
        ignore_eos=fields.boolean("ignore_eos") or False,
    )
    return Decoded(request, stream)


def _refuse_unavailable(fields: Fields) -> None:
    for key, why in REFUSED.items():
        value = fields.get(key)
        if value is None or value is False or value == [] or value == "":
            continue
        fields.refuse(key, f"cannot be used: {why}", code="unsupported_value")


def _check_permissions(fields: Fields, stream: bool) -> None:
    """Valid or not is all that matters: this server runs no tools that they could restrict."""
    fields.choice("code_execution_permission", PERMISSIONS)
    if fields.choice("agent_permission", PERMISSIONS) == "ask" and not stream:
        fields.refuse("agent_permission", '"ask" requires `stream: true` over HTTP')


def _top_logprobs(fields: Fields) -> int | None:
    """None: no logprobs. 0: of the chosen token only."""
    wanted = fields.boolean("logprobs") or False
    top = fields.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        fields.refuse("top_logprobs", "needs `logprobs: true`")
    return (top or 0) if wanted else None


def _reasoning(fields: Fields) -> ReasoningPolicy:
    """`enable_thinking` and `reasoning_effort`, at the top or in `chat_template_kwargs`."""
    enabled, effort = _thinking(fields)
    kwargs = fields.object("chat_template_kwargs")
    if kwargs is not None:
        inner_enabled, inner_effort = _thinking(kwargs)
        enabled = inner_enabled if enabled is None else enabled
        effort = inner_effort if effort is None else effort
    if effort is None:
        return ReasoningPolicy(enabled)
    off = effort in ("off", "none")
    if enabled is not None and enabled is off:
        fields.refuse("reasoning_effort", "contradicts `enable_thinking`")
    return ReasoningPolicy(not off, None if off else effort)


def _thinking(fields: Fields) -> tuple[bool | None, str | None]:
    effort = fields.string("reasoning_effort")
    if effort is not None:
        effort = effort.strip().lower()
        Fields({"reasoning_effort": effort}, fields.path).choice("reasoning_effort", EFFORTS)
    return fields.boolean("enable_thinking"), "xhigh" if effort == "max" else effort


def _default(value: int | None, default: int) -> int:
    return default if value is None else value
