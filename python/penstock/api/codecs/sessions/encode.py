"""Encodes a message of the dialog as messages of the chat API."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

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


def encode_message(message: Message) -> list[dict[str, Any]]:
    """Return the chat messages that represent `message`: one for each tool result, then one with
    all other parts."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    others = tuple(part for part in message.parts if not isinstance(part, ToolResult))
    encoded = [_result(result) for result in results]
    if others or not results:
        encoded.append(_message(message, others))
    return encoded


def _result(result: ToolResult) -> dict[str, Any]:
    encoded: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": result.call_id,
        "content": result.text,
    }
    if result.name is not None:
        encoded["name"] = result.name
    if result.is_error:
        encoded["is_error"] = True
    return encoded


def _message(message: Message, parts: tuple[Part, ...]) -> dict[str, Any]:
    content = [_content(part) for part in parts if not isinstance(part, Reasoning | ToolCall)]
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls = [_call(part) for part in parts if isinstance(part, ToolCall)]
    encoded: dict[str, Any] = {"role": message.role, "content": content}
    if len(content) == 1 and content[0]["type"] == "text":
        encoded["content"] = content[0]["text"]
    if not content and calls:
        encoded["content"] = None
    if message.name is not None:
        encoded["name"] = message.name
    if reasoning:
        encoded["reasoning_content"] = reasoning
    if calls:
        encoded["tool_calls"] = calls
    return encoded


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image_url", "image_url": {"url": _address(part)}}
        case Audio():
            return {"type": "audio_url", "audio_url": {"url": _address(part)}}
        case Video():
            return {"type": "video_url", "video_url": {"url": _address(part)}}
        case File():
            return {"type": "file", "file": _file(part)}
        case _:
            raise AssertionError(part)


def _address(part: Image | Audio | Video) -> str:
    if part.data is not None:
        return _data_url(part.data, part.mime_type)
    return part.url or ""


def _file(part: File) -> dict[str, Any]:
    encoded = {"file_id": part.file_id, "filename": part.name, "file_url": part.url}
    if part.data is not None:
        encoded["file_data"] = _data_url(part.data, part.mime_type)
    return {key: value for key, value in encoded.items() if value is not None}


def _data_url(data: bytes, mime_type: str | None) -> str:
    return f"data:{mime_type or ''};base64,{b64encode(data).decode()}"
