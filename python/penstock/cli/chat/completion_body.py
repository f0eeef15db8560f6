"""Writes the chat completion request of a turn, for a server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from penstock.api.chats.answer_request import REQUEST_FIELDS
from penstock.cli.chat.conversation import Turn
from penstock.dialog import Audio, File, Image, Message, Part, Text, ToolCall, ToolResult, Video

_TOOL_FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "search": {"web_search_options": {}},
    "code": {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    "shell": {"enable_shell": True},
}
_MEDIA: Final[Mapping[type[Part], str]] = {
    Image: "image_url",
    Audio: "audio_url",
    Video: "video_url",
}


def completion_body(turn: Turn, model: str) -> dict[str, Any]:
    """Return the body of a chat completion request for a turn, answered by `model`."""
    body = {name: value for name, value in turn.settings.items() if name in REQUEST_FIELDS}
    body |= {"model": model, "stream": True, "truncate_sequence": True}
    body["messages"] = [_message(message) for message in turn.messages]
    chosen = [name for name, on in (turn.settings.get("tools") or {}).items() if on]
    for name in chosen:
        body |= _TOOL_FIELDS[name]
    if chosen:
        body["session_id"] = turn.container
    return body


def _message(message: Message) -> dict[str, Any]:
    match message.role, message.parts:
        case "tool", (ToolResult() as result, *_):
            return {"role": "tool", "tool_call_id": result.call_id, "content": result.text}
        case "assistant", parts:
            return _answer(parts)
        case role, (Text(text=text),):
            return {"role": role, "content": text}
        case role, parts:
            return {"role": role, "content": [_part(part) for part in parts]}


def _answer(parts: tuple[Part, ...]) -> dict[str, Any]:
    text = "\n\n".join(part.text for part in parts if isinstance(part, Text))
    calls = [
        {
            "id": part.id,
            "type": "function",
            "function": {"name": part.name, "arguments": part.arguments},
        }
        for part in parts
        if isinstance(part, ToolCall)
    ]
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text or None, "tool_calls": calls}


def _part(part: Part) -> dict[str, Any]:
    match part:
        case Text(text=text):
            return {"type": "text", "text": text}
        case Image(data=bytes(data)) | Audio(data=bytes(data)) | Video(data=bytes(data)):
            kind = _MEDIA[type(part)]
            url = f"data:{part.mime_type};base64,{b64encode(data).decode()}"
            return {"type": kind, kind: {"url": url}}
        case File(name=name, data=bytes(data)):
            file = {"filename": name, "file_data": b64encode(data).decode()}
            return {"type": "file", "file": file}
        case _:
            raise AssertionError(f"a message of the user has no {type(part).__name__}")
