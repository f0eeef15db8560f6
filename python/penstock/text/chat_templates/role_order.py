"""Turns of a conversation in the order that a template takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from penstock.text.chat_templates.capabilities import TemplateCapabilities
from penstock.text.chat_templates.template_messages import TemplateMessage

SYSTEM_ROLES: Final = ("system", "developer")
BLANK_LINE: Final = "\n\n"


def alternates(messages: Sequence[TemplateMessage]) -> bool:
    """Whether these are a user's and an assistant's messages in turn, which all templates take."""
    roles = [message["role"] for message in messages]
    return (
        {"user", "assistant"}.issuperset(roles)
        and roles[:1] == ["user"]
        and all(one != next_one for one, next_one in pairwise(roles))
    )


def with_system_first(
    messages: Sequence[TemplateMessage], capabilities: TemplateCapabilities
) -> list[TemplateMessage]:
    """System messages within the conversation go before it, where the template does not show them
    where they stand."""
    if capabilities.late_system:
        return list(messages)
    first = [message for message in messages if message["role"] in SYSTEM_ROLES]
    return first + [message for message in messages if message["role"] not in SYSTEM_ROLES]


def with_joined_roles(
    messages: Sequence[TemplateMessage], capabilities: TemplateCapabilities
) -> list[TemplateMessage]:
    """Messages of one role in a row become one, where the template does not show several."""
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
    """An empty message of the user goes before an assistant that speaks first, and behind a system
    message that is all there is, where the template does not take that."""
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
    """An assistant's message with several calls becomes one for each, with its result behind it."""
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
        said = message if call is calls[0] else {"role": "assistant", "content": ""}
        found.append({**said, "tool_calls": [call]})
        found += [result for result in left if result.get("tool_call_id") == call["id"]]
        left = [result for result in left if result.get("tool_call_id") != call["id"]]
    return found + left


def _joined_role(message: TemplateMessage) -> str:
    role: str = message["role"]
    return "system" if role in SYSTEM_ROLES else role


def _joined(run: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """One message for those up to each one with calls, whose results must follow it."""
    found: list[TemplateMessage] = []
    begun: list[TemplateMessage] = []
    for message in run:
        begun.append(message)
        if "tool_calls" in message:
            found.append(_one_of(begun))
            begun = []
    return [*found, _one_of(begun)] if begun else found


def _one_of(run: Sequence[TemplateMessage]) -> TemplateMessage:
    if len(run) == 1:
        return run[0]
    one: TemplateMessage = {**run[-1], **run[0]}
    for key in ("content", "reasoning_content"):
        if key in one:
            one[key] = BLANK_LINE.join(filter(None, (message.get(key) for message in run)))
    return one
