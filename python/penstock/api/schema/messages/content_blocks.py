"""Anthropic's messages: the blocks of a request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

FileId = Annotated[str, Meta(min_length=1, max_length=256)]


class _Block(Struct, tag_field="type", kw_only=True):
    cache_control: f.Ignored = None


class TextBlock(_Block, tag="text", kw_only=True):
    """Text."""

    text: str
    citations: f.Ignored = None


class Base64Image(Struct, tag="base64", tag_field="type"):
    """An image with its bytes."""

    media_type: Annotated[str, Meta(pattern="^image/")]
    data: str


class UrlSource(Struct, tag="url", tag_field="type"):
    """What an address names."""

    url: str


class FileIdSource(Struct, tag="file", tag_field="type"):
    """A stored file."""

    file_id: FileId


class ImageBlock(_Block, tag="image", kw_only=True):
    """An image."""

    source: Base64Image | UrlSource | FileIdSource


class TextSource(Struct, tag="text", tag_field="type"):
    """A document that is text."""

    data: str
    media_type: str | None = None


class ContentSource(Struct, tag="content", tag_field="type"):
    """A document of blocks."""

    content: str | list[TextBlock | ImageBlock]


class Base64Document(Struct, tag="base64", tag_field="type"):
    """A document with its bytes."""

    data: str
    media_type: Annotated[str | None, Meta(description="Absent: application/pdf.")] = None


class DocumentBlock(_Block, tag="document", kw_only=True):
    """Text is shown to the model whole; other documents are files of the request."""

    source: Base64Document | TextSource | ContentSource | UrlSource | FileIdSource
    title: str | None = None
    context: str | None = None
    citations: f.Ignored = None


class SearchResultBlock(_Block, tag="search_result", kw_only=True):
    """What the client has found."""

    source: str
    title: str
    content: str | list[TextBlock]
    citations: f.Ignored = None


class ContainerUploadBlock(_Block, tag="container_upload", kw_only=True):
    """A stored file, for tools of the server."""

    file_id: FileId


class ToolReferenceBlock(_Block, tag="tool_reference", kw_only=True):
    """A tool that was found; not shown to the model."""

    tool_name: f.Ignored = None


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    """What a call of the client's tool returned."""

    tool_use_id: str
    content: (
        str
        | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock]
        | None
    ) = None
    is_error: bool | None = None


class ThinkingBlock(_Block, tag="thinking", kw_only=True):
    """What the assistant thought."""

    thinking: str
    signature: f.Ignored = None


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    """A call of the client's tool."""

    id: str
    name: str
    input: dict[str, Any] | None = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking", kw_only=True):
    """Accepted and ignored, as are all blocks below: no model here can read them."""


class ServerToolUseBlock(_Block, tag="server_tool_use", kw_only=True):
    """Accepted and ignored."""


class McpToolUseBlock(_Block, tag="mcp_tool_use", kw_only=True):
    """Accepted and ignored."""


class McpToolResultBlock(_Block, tag="mcp_tool_result", kw_only=True):
    """Accepted and ignored."""


class WebSearchToolResultBlock(_Block, tag="web_search_tool_result", kw_only=True):
    """Accepted and ignored; so is every other `..._tool_result`."""


class CodeExecutionToolResultBlock(_Block, tag="code_execution_tool_result", kw_only=True):
    """Accepted and ignored."""


class CompactionBlock(_Block, tag="compaction", kw_only=True):
    """Accepted and ignored."""


class FallbackBlock(_Block, tag="fallback", kw_only=True):
    """Accepted and ignored."""


Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ContainerUploadBlock
    | ToolResultBlock
    | ThinkingBlock
    | ToolUseBlock
    | RedactedThinkingBlock
    | ServerToolUseBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | WebSearchToolResultBlock
    | CodeExecutionToolResultBlock
    | CompactionBlock
    | FallbackBlock
)


class InputMessageParam(Struct):
    """A message. The user's have no thinking and no calls, the assistant's have text, thinking and
    calls, the system's have text; messages of one role that follow each other are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]
