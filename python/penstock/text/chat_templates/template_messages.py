"""Converts messages to the dictionaries of the `transformers` format, which chat templates
expect."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from penstock.dialog import FunctionTool, Message, Part, Reasoning, Text, ToolCall, ToolResult
from penstock.models.media.prepared import MediaKind
from penstock.text.chat_templates.media_marks import TemplateMessage, mark_of, media_kind

__all__ = ["TemplateMessage", "media_kinds_of", "template_messages", "template_tools"]


def template_messages(
    messages: Iterable[Message],
    *,
    knows_developer: bool = False,
    media: Collection[MediaKind] = (),
) -> list[TemplateMessage]:
    """Return one dictionary per message, or one per tool result for a message with tool results.

    Text parts are joined by a newline; `content` is always a string. An item of a kind in `media`
    is a mark on a line of its own (see `media_marks`); its number is that of `media_kinds_of`.
    Items directly after a tool result belong to the result. Arguments of tool calls are objects;
    arguments that are not an object become {"arguments": ...}. The role "developer" becomes
    "system" unless the template knows "developer".
    """
    numbers = count()
    entries: list[TemplateMessage] = []
    for message in messages:
        results, others = _split_parts(message.parts, media, numbers)
        entries += results
        if others or not results:
            entries.append(_entry(message, others, knows_developer))
    return entries


def media_kinds_of(
    messages: Iterable[Message], media: Collection[MediaKind]
) -> tuple[MediaKind, ...]:
    """Return the kinds of the items of messages, as far as they are in `media`. An item's number is
    its index."""
    kinds = (media_kind(part) for message in messages for part in message.parts)
    return tuple(kind for kind in kinds if kind is not None and kind in media)


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


def _split_parts(
    parts: Iterable[Part], media: Collection[MediaKind], numbers: Iterator[int]
) -> tuple[list[TemplateMessage], list[Part]]:
    """Return the messages of the tool results among the parts of a message, and the other parts.
    Items of a kind in `media` become texts with their marks; other items are left out."""
    results: list[TemplateMessage] = []
    others: list[Part] = []
    follows_result = False
    for part in parts:
        kind = media_kind(part)
        if kind is None:
            follows_result = isinstance(part, ToolResult)
            if isinstance(part, ToolResult):
                results.append(_result(part))
            else:
                others.append(part)
        elif kind in media:
            mark = mark_of(next(numbers))
            if follows_result:
                shown = results[-1]["content"]
                results[-1]["content"] = f"{shown}\n{mark}" if shown else mark
            else:
                others.append(Text(mark))
    return results, others


def _result(result: ToolResult) -> TemplateMessage:
    entry: TemplateMessage = {
        "role": "tool",
        "content": result.text,
        "tool_call_id": result.call_id,
    }
    if result.name is not None:
        entry["name"] = result.name
    return entry


def _entry(message: Message, parts: Sequence[Part], knows_developer: bool) -> TemplateMessage:
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    entry: TemplateMessage = {
        "role": role,
        "content": "\n".join(part.text for part in parts if isinstance(part, Text)),
    }
    if message.name is not None:
        entry["name"] = message.name
    reasoning = "\n".join(part.text for part in parts if isinstance(part, Reasoning))
    if reasoning:
        entry["reasoning_content"] = reasoning
    calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
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
