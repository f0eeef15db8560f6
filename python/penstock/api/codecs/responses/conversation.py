"""Continues a stored conversation."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.dialog import Message, Part, ToolCall, ToolResult


def continue_conversation(
    earlier: Iterable[Message], turn: Iterable[Message]
) -> tuple[Message, ...]:
    """Return the messages of the stored conversation and of the new turn. Tool results get the name
    of the function that was called, which some chat templates need."""
    messages: list[Message] = []
    names: dict[str, str] = {}
    for message in (*earlier, *turn):
        for part in message.parts:
            if isinstance(part, ToolCall):
                names[part.id] = part.name
        if message.role == "tool":
            parts = tuple(_named(part, names) for part in message.parts)
            message = msgspec.structs.replace(message, parts=parts)
        messages.append(message)
    return tuple(messages)


def _named(part: Part, names: dict[str, str]) -> Part:
    if not isinstance(part, ToolResult) or part.name is not None:
        return part
    return msgspec.structs.replace(part, name=names.get(part.call_id))
