"""Converts messages to the dictionaries of the `transformers` format, which chat templates
expect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from penstock.dialog import FunctionTool, Message, Reasoning, Text, ToolCall, ToolResult

TemplateMessage = dict[str, Any]
"""A message in the `transformers` format: `role`, `content` (a string) and optionally `name`,
`reasoning_content`, `tool_calls`, `tool_call_id`."""


def template_messages(
    messages: Iterable[Message], *, knows_developer: bool = False
) -> list[TemplateMessage]:
    """Return one dictionary per message, or one per tool result for a message with tool results.

    Text parts are joined by a newline; `content` is always a string. Arguments of tool calls are
    objects; arguments that are not an object become {"arguments": ...}. The role "developer"
    becomes "system" unless the template knows "developer".
    """
    return [entry for message in messages for entry in _entries(message, knows_developer)]


def template_tools(tools: Iterable[FunctionTool]) -> list[dict[str, Any]] | None:
    """Return function tools in the `transformers` format, or None if `tools` is empty."""
    listed = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        if tool.parameters is not None:
            function["parameters"] = tool.parameters
        listed.append({"type": "function", "function": function})
    return listed or None


def _entries(message: Message, knows_developer: bool) -> Iterator[TemplateMessage]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    for result in results:
        entry: TemplateMessage = {
            "role": "tool",
            "content": result.text,
            "tool_call_id": result.call_id,
        }
        if result.name is not None:
            entry["name"] = result.name
        yield entry
    if not results or len(results) < len(message.parts):
        yield _entry(message, knows_developer)


def _entry(message: Message, knows_developer: bool) -> TemplateMessage:
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    entry: TemplateMessage = {
        "role": role,
        "content": "\n".join(part.text for part in message.parts if isinstance(part, Text)),
    }
    if message.name is not None:
        entry["name"] = message.name
    reasoning = "\n".join(part.text for part in message.parts if isinstance(part, Reasoning))
    if reasoning:
        entry["reasoning_content"] = reasoning
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCall)]
    if calls:
        entry["tool_calls"] = calls
    return entry


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "type": "function",
        "id": call.id,
        "function": {"name": call.name, "arguments": _arguments(call.arguments)},
    }


def _arguments(text: str) -> dict[str, Any]:
    """Decode the JSON arguments of a tool call to an object: many templates iterate over the keys.

    Empty arguments and null become {}; any other text that is not an object becomes
    {"arguments": ...}.
    """
    if not text.strip():
        return {}
    try:
        decoded = msgspec.json.decode(text)
    except msgspec.DecodeError:
        decoded = text
    if decoded is None:
        return {}
    return decoded if isinstance(decoded, dict) else {"arguments": decoded}
