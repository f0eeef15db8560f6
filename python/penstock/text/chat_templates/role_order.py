"""Reorders, merges and splits messages so that a template accepts the order of their roles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from penstock.text.chat_templates.capabilities import TemplateCapabilities
from penstock.text.chat_templates.template_messages import TemplateMessage

SYSTEM_ROLES: Final = ("system", "developer")
BLANK_LINE: Final = "\n\n"


def alternates(messages: Sequence[TemplateMessage]) -> bool:
    """Whether all messages are user and assistant messages in turn, starting with the user. All
    templates support this order."""
    roles = [message["role"] for message in messages]
    return (
        {"user", "assistant"}.issuperset(roles)
        and roles[:1] == ["user"]
        and all(one != next_one for one, next_one in pairwise(roles))
    )


def with_system_first(
    messages: Sequence[TemplateMessage], capabilities: TemplateCapabilities
) -> list[TemplateMessage]:
    """Move system messages to the front, unless the template shows them in any position."""
    if capabilities.late_system:
        return list(messages)
    first = [message for message in messages if message["role"] in SYSTEM_ROLES]
    return first + [message for message in messages if message["role"] not in SYSTEM_ROLES]


def with_joined_roles(
    messages: Sequence[TemplateMessage], capabilities: TemplateCapabilities
) -> list[TemplateMessage]:
    """Merge consecutive messages of one role, unless the template shows all of them."""
    found: list[TemplateMessage] = []
    for role, run in groupby(messages, key=_joined_role):
        if role not in ("system", "user", "assistant") or role in capabilities.repeated_roles:
            found += run
        else:
            found += _joined(list(run))
    return found


def with_user_first(
    messages: Sequence[TemplateMessage], capabilities: TemplateCapabilities
) -> list[TemplateMessage]:
    """Insert an empty user message before a conversation that the assistant starts, and after
    system messages without any other message, unless the template supports these."""
    start = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), None)
    if start is None:
        return [
            *messages,
            *([] if capabilities.system_alone else [{"role": "user", "content": ""}]),
        ]
    if capabilities.assistant_first or messages[start]["role"] != "assistant":
        return list(messages)
    return [*messages[:start], {"role": "user", "content": ""}, *messages[start:]]


def with_single_calls(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Split assistant messages with several calls into one message per call, each followed by the
    call's result."""
    found: list[TemplateMessage] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            found.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        found += _split_calls(message, calls, messages[at:end])
        at = end
    return found


def _split_calls(
    message: TemplateMessage,
    calls: Sequence[dict[str, Any]],
    results: Sequence[TemplateMessage],
) -> list[TemplateMessage]:
    found: list[TemplateMessage] = []
    left = list(results)
    for call in calls:
        carrier = message if call is calls[0] else {"role": "assistant", "content": ""}
        found.append({**carrier, "tool_calls": [call]})
        found += [result for result in left if result.get("tool_call_id") == call["id"]]
        left = [result for result in left if result.get("tool_call_id") != call["id"]]
    return found + left


def _joined_role(message: TemplateMessage) -> str:
    role: str = message["role"]
    return "system" if role in SYSTEM_ROLES else role


def _joined(run: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Merge a run of messages of one role. A message with tool calls ends a merged message, since
    the results must follow the calls."""
    found: list[TemplateMessage] = []
    pending: list[TemplateMessage] = []
    for message in run:
        pending.append(message)
        if "tool_calls" in message:
            found.append(_merged(pending))
            pending = []
    return [*found, _merged(pending)] if pending else found


def _merged(run: Sequence[TemplateMessage]) -> TemplateMessage:
    if len(run) == 1:
        return run[0]
    one: TemplateMessage = {**run[-1], **run[0]}
    for key in ("content", "reasoning_content"):
        if key in one:
            one[key] = BLANK_LINE.join(filter(None, (message.get(key) for message in run)))
    return one
