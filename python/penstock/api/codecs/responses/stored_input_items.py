"""Converts a stored conversation into the input items of its response."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeAlias

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

INCLUDE_IMAGES: Final = "message.input_image.image_url"
ImageAddress: TypeAlias = Callable[[Image], "str | None"]


def input_items(
    messages: Iterable[Message], response_id: str, include: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return the input items of a response, oldest first. Content that was sent inline is left out,
    except images if `include` has INCLUDE_IMAGES."""
    image_url = _whole_address if INCLUDE_IMAGES in include else _sent_address
    stem = response_id.removeprefix(RESPONSE_PREFIX)
    items = [item for message in messages for item in _items(message, image_url)]
    return [
        {"id": f"{prefix}{stem}i{index:04x}", "status": "completed", **item}
        for index, (prefix, item) in enumerate(items)
    ]


def _items(message: Message, image_url: ImageAddress) -> list[tuple[str, dict[str, Any]]]:
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
                content.append(_content(part, image_url, message.role == "assistant"))
    said = []
    if content:
        role = "user" if message.role == "tool" else message.role
        said = [("msg_", {"type": "message", "role": role, "content": content})]
    return [*thoughts, *said, *acts]


def _sent_address(image: Image) -> str | None:
    """Return the URL of an image, None for an image that was sent inline."""
    return image.url


def _whole_address(image: Image) -> str | None:
    """Return the URL of an image, a data: URL for an image that was sent inline."""
    if image.data is None:
        return image.url
    return f"data:{image.mime_type or ''};base64,{b64encode(image.data).decode()}"


def _content(part: Part, image_url: ImageAddress, is_output: bool) -> dict[str, Any]:
    match part:
        case Text() if is_output:
            return {"type": "output_text", "text": part.text, "annotations": []}
        case Text():
            return {"type": "input_text", "text": part.text}
        case File():
            named = {"file_id": part.file_id, "filename": part.name, "file_url": part.url}
            return {"type": "input_file", **named}
        case Image():
            return {"type": "input_image", "image_url": image_url(part), "detail": "auto"}
        case Audio() | Video():
            return {"type": "input_audio", "url": part.url}
        case _:
            raise AssertionError(part)
