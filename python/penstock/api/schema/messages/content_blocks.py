"""Anthropic's Messages: the blocks of a request."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

# No other block may stand at a place.
_ONLY_THESE = Meta(extra={"code": f.UNSUPPORTED})


class _Block(Struct, tag_field="type", kw_only=True):
    cache_control: f.Ignored = None


class TextBlock(_Block, tag="text", kw_only=True):
    """Text."""

    text: str
    citations: f.Ignored = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking", kw_only=True):
    """Accepted and ignored, as are all of `IgnoredBlock`: results of tools that Anthropic runs, and
    reasoning that only Anthropic can read."""


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


IgnoredBlock = (
    RedactedThinkingBlock
    | ServerToolUseBlock
    | McpToolUseBlock
    | McpToolResultBlock
    | WebSearchToolResultBlock
    | CodeExecutionToolResultBlock
    | CompactionBlock
    | FallbackBlock
)
SystemBlock = Annotated[TextBlock | IgnoredBlock, _ONLY_THESE]


class Base64Image(Struct, tag="base64", tag_field="type"):
    """An image with its bytes."""

    media_type: Annotated[
        str,
        Meta(pattern="^image/", extra={"wanted": "the type of an image: image/png, image/jpeg"}),
    ]
    data: str


class UrlSource(Struct, tag="url", tag_field="type"):
    """Content at an address."""

    url: str


class FileIdSource(Struct, tag="file", tag_field="type"):
    """A stored file."""

    file_id: f.Id


class ImageBlock(_Block, tag="image", kw_only=True):
    """An image."""

    source: Base64Image | UrlSource | FileIdSource


class TextSource(Struct, tag="text", tag_field="type"):
    """A document that is text."""

    data: str
    media_type: str | None = None


class ContentSource(Struct, tag="content", tag_field="type"):
    """A document of blocks."""

    content: str | list[Annotated[TextBlock | ImageBlock | IgnoredBlock, _ONLY_THESE]]


class Base64Document(Struct, tag="base64", tag_field="type"):
    """A document with its bytes."""

    data: str
    media_type: Annotated[str | None, Meta(description="Absent: application/pdf.")] = None


class DocumentBlock(_Block, tag="document", kw_only=True):
    """A document. The model sees all of its text; other documents are files of the request."""

    source: Base64Document | TextSource | ContentSource | UrlSource | FileIdSource
    title: str | None = None
    context: str | None = None
    citations: f.Ignored = None


class SearchResultBlock(_Block, tag="search_result", kw_only=True):
    """A search result of the client."""

    source: str
    title: str
    content: str | list[SystemBlock]
    citations: f.Ignored = None


class ContainerUploadBlock(_Block, tag="container_upload", kw_only=True):
    """A stored file, for tools of the server."""

    file_id: f.Id


class ToolReferenceBlock(_Block, tag="tool_reference", kw_only=True):
    """A tool that a search found; not shown to the model."""

    tool_name: f.Ignored = None


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    """The result of a call of the client's tool."""

    tool_use_id: str
    content: (
        str
        | list[
            Annotated[
                TextBlock
                | ImageBlock
                | DocumentBlock
                | SearchResultBlock
                | ToolReferenceBlock
                | IgnoredBlock,
                _ONLY_THESE,
            ]
        ]
        | None
    ) = None
    is_error: bool | None = None


class ThinkingBlock(_Block, tag="thinking", kw_only=True):
    """Reasoning of the assistant."""

    thinking: str
    signature: f.Ignored = None


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    """A call of the client's tool."""

    id: str
    name: str
    input: dict[str, Any] | None = None


UserBlock = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ContainerUploadBlock
    | ToolResultBlock
    | IgnoredBlock,
    _ONLY_THESE,
]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | IgnoredBlock, _ONLY_THESE]
Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ContainerUploadBlock
    | ToolReferenceBlock
    | ToolResultBlock
    | ThinkingBlock
    | ToolUseBlock
    | IgnoredBlock
)


class UserTurn(Struct, tag="user", tag_field="role"):
    """A message of the user. Consecutive messages of one role are one turn."""

    content: str | list[UserBlock]


class AssistantTurn(Struct, tag="assistant", tag_field="role"):
    """An earlier answer."""

    content: str | list[AssistantBlock]


class SystemTurn(Struct, tag="system", tag_field="role"):
    """Instructions within the conversation."""

    content: str | list[SystemBlock]


InputMessageParam = UserTurn | AssistantTurn | SystemTurn
