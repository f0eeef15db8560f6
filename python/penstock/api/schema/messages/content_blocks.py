"""Anthropic's Messages: the content blocks and turns of a request."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from penstock.api.schema import fields as f

# Blocks of all other types are refused with this error code.
_ONLY_THESE = Meta(extra={"code": f.UNSUPPORTED})


Lenient = Annotated[Any, Meta(description="A value of another type is ignored.")]


class _Block(Struct, tag_field="type", kw_only=True):
    cache_control: f.Ignored = None


class TextBlock(_Block, tag="text", kw_only=True):
    """A block of text."""

    text: str
    citations: f.Ignored = None


class RedactedThinkingBlock(_Block, tag="redacted_thinking", kw_only=True):
    """Reasoning that only Anthropic can read. Accepted and ignored."""


class _ServerCall(_Block, kw_only=True):
    id: Lenient = None
    name: Lenient = None
    input: Lenient = None


class ServerToolUseBlock(_ServerCall, tag="server_tool_use", kw_only=True):
    """A call of a server tool in an earlier answer. Ignored unless a result follows in the same
    answer."""


class McpToolUseBlock(_ServerCall, tag="mcp_tool_use", kw_only=True):
    """A call of an MCP tool, or of a server tool that Anthropic has no type for, in an earlier
    answer. Ignored unless a result follows in the same answer."""


class _ServerResult(_Block, kw_only=True):
    tool_use_id: Lenient = None
    content: Lenient = None
    is_error: Lenient = None
    result_content: Lenient = None


class WebSearchToolResultBlock(_ServerResult, tag="web_search_tool_result", kw_only=True):
    """The result of a server tool, as are all blocks whose type ends in `_tool_result`. Ignored
    unless it follows its call. `result_content`: the result as the model saw it."""


class McpToolResultBlock(_ServerResult, tag="mcp_tool_result", kw_only=True):
    """The result of an `mcp_tool_use`. Ignored unless it follows its call."""


class CodeExecutionToolResultBlock(_ServerResult, tag="code_execution_tool_result", kw_only=True):
    """The result of a `code_execution` call. Ignored unless it follows its call."""


class CompactionBlock(_Block, tag="compaction", kw_only=True):
    """A summary of earlier turns that Anthropic made. Accepted and ignored."""


class FallbackBlock(_Block, tag="fallback", kw_only=True):
    """A block of type `fallback`. Accepted and ignored."""


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
    """An image. `data`: base64."""

    media_type: Annotated[
        str,
        Meta(pattern="^image/", extra={"wanted": "the type of an image: image/png, image/jpeg"}),
    ]
    data: str


class UrlSource(Struct, tag="url", tag_field="type"):
    """Content that the server fetches from a URL."""

    url: str


class FileIdSource(Struct, tag="file", tag_field="type"):
    """Content of a stored file."""

    file_id: f.Id


class ImageBlock(_Block, tag="image", kw_only=True):
    """A block with an image."""

    source: Base64Image | UrlSource | FileIdSource


class TextSource(Struct, tag="text", tag_field="type"):
    """A document of plain text."""

    data: str
    media_type: str | None = None


class ContentSource(Struct, tag="content", tag_field="type"):
    """A document that consists of text and image blocks."""

    content: str | list[Annotated[TextBlock | ImageBlock | IgnoredBlock, _ONLY_THESE]]


class Base64Document(Struct, tag="base64", tag_field="type"):
    """A document. `data`: base64."""

    data: str
    media_type: Annotated[str | None, Meta(description="Absent: application/pdf.")] = None


class DocumentBlock(_Block, tag="document", kw_only=True):
    """A block with a document. The prompt contains the whole text of a `text` or `content` source;
    a document from any other source is attached as a file."""

    source: Base64Document | TextSource | ContentSource | UrlSource | FileIdSource
    title: str | None = None
    context: str | None = None
    citations: f.Ignored = None


class SearchResultBlock(_Block, tag="search_result", kw_only=True):
    """A search result that the client found. Its text becomes part of the prompt."""

    source: str
    title: str
    content: str | list[SystemBlock]
    citations: f.Ignored = None


class ContainerUploadBlock(_Block, tag="container_upload", kw_only=True):
    """A stored file that is made available to the server's tools."""

    file_id: f.Id


class ToolReferenceBlock(_Block, tag="tool_reference", kw_only=True):
    """A tool that a tool search found. The model does not see the block."""

    tool_name: f.Ignored = None


class ToolResultBlock(_Block, tag="tool_result", kw_only=True):
    """The result of a call of one of the client's tools."""

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
    """Reasoning of an earlier answer."""

    thinking: str
    signature: f.Ignored = None


class ToolUseBlock(_Block, tag="tool_use", kw_only=True):
    """A call of one of the client's tools in an earlier answer."""

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
    """A message of the user. Consecutive messages of one role are joined into one turn."""

    content: str | list[UserBlock]


class AssistantTurn(Struct, tag="assistant", tag_field="role"):
    """An earlier answer."""

    content: str | list[AssistantBlock]


class SystemTurn(Struct, tag="system", tag_field="role"):
    """Instructions at this point of the conversation."""

    content: str | list[SystemBlock]


InputMessageParam = UserTurn | AssistantTurn | SystemTurn
