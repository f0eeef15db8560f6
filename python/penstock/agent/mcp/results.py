"""Results of MCP calls, as text and images for the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.base.data_url import decode_base64

if TYPE_CHECKING:
    from mcp_types import CallToolResult

MAX_RESULT_BYTES: Final = 256 * 1024
"""Maximum size of a result that the model sees. It is cut there."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call: the text that the model sees, and the images for a model that reads
    images."""

    text: str
    is_error: bool = False
    images: tuple[bytes, ...] = ()


def call_result(result: CallToolResult) -> CallResult:
    """Return the content of a result, one line or more per part. Images and sounds are named in the
    text."""
    parts = [_part(part) for part in result.content]
    text = "\n".join(parts)
    if not parts and result.structured_content is not None:
        text = msgspec.json.encode(result.structured_content).decode()
    images = tuple(filter(None, map(_image, result.content)))
    return CallResult(shortened(text), bool(result.is_error), images)


def shortened(text: str, limit: int = MAX_RESULT_BYTES) -> str:
    """Return `text` cut to `limit` bytes of UTF-8, with a note at its end if something is cut."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    kept = data[:limit].decode(errors="ignore")
    return f"{kept}\n[cut: {len(data) - limit} of {len(data)} bytes are not shown]"


def _image(part: Any) -> bytes | None:
    """Return the content of an image, None for any other part and for invalid base64."""
    if part.type != "image":
        return None
    try:
        return decode_base64(part.data)
    except ValueError:
        return None


def _part(part: Any) -> str:
    match part.type:
        case "text":
            return str(part.text)
        case "image":
            return f"[Image: {part.mime_type}]"
        case "audio":
            return f"[Audio: {part.mime_type}]"
        case "resource_link":
            return f"[Resource: {part.uri}]"
        case _:
            resource = part.resource
            if hasattr(resource, "text"):
                return str(resource.text)
            return f"[Resource: {resource.uri}, {resource.mime_type or 'binary'}]"
