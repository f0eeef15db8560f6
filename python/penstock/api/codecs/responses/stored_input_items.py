"""Converts a stored conversation into the input items of its response."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.api.codecs.responses.item_ids import RESPONSE_PREFIX
from penstock.dialog import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)


def input_items(messages: Iterable[Message], response_id: str) -> list[dict[str, Any]]:
    """Return the input items of a response, oldest first. Content that was sent inline is left
    out."""
    stem = response_id.removeprefix(RESPONSE_PREFIX)
    items = [item for message in messages for item in _items(message)]
    return [
        {"id": f"{prefix}{stem}i{index:04x}", "status": "completed", **item}
        for index, (prefix, item) in enumerate(items)
    ]


def _items(message: Message) -> list[tuple[str, dict[str, Any]]]:
    """Return (prefix of the item's id, item) for each item that represents a part of the
    message."""
    thoughts: list[tuple[str, dict[str, Any]]] = []
    acts: list[tuple[str, dict[str, Any]]] = []
    content: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Reasoning():
                thought = {"type": "reasoning_text", "text": part.text}
                item = {"type": "reasoning", "summary": [], "content": [thought]}
                thoughts.append(("rs_", item))
            case ToolCall():
                call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
                acts.append(("fc_", {"type": "function_call", **call}))
            case ToolResult():
                result = {"call_id": part.call_id, "output": part.text}
                acts.append(("fco_", {"type": "function_call_output", **result}))
            case _:
                content.append(_content(part, message.role == "assistant"))
    said = []
    if content:
        role = "user" if message.role == "tool" else message.role
        said = [("msg_", {"type": "message", "role": role, "content": content})]
    return [*thoughts, *said, *acts]


def _content(part: Part, is_output: bool) -> dict[str, Any]:
    match part:
        case Text() if is_output:
            return {"type": "output_text", "text": part.text, "annotations": []}
        case Text():
            return {"type": "input_text", "text": part.text}
        case File():
            named = {"file_id": part.file_id, "filename": part.name, "file_url": part.url}
            return {"type": "input_file", **named}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": "auto"}
        case Audio() | Video():
            return {"type": "input_audio", "url": part.url}
        case _:
            raise AssertionError(part)
