"""Anthropic's Messages: the blocks of server tools in answers."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

ToolErrorCode = Literal[
    "invalid_tool_input", "unavailable", "execution_time_exceeded", "url_not_accessible"
]


class AnsweredServerToolUse(Struct, tag="server_tool_use", tag_field="type"):
    """A call of a server tool. `input` of `bash_code_execution` has the joined `commands` as
    `command`. In `content_block_start`, `input` is still empty."""

    id: str
    name: Literal["web_search", "web_fetch", "code_execution", "bash_code_execution"]
    input: dict[str, Any]


class SearchResult(Struct, tag="web_search_result", tag_field="type"):
    """A page that a search found. `encrypted_content`: its passage, for a later request."""

    url: str
    title: str
    encrypted_content: str
    page_age: None


class SearchError(Struct, tag="web_search_tool_result_error", tag_field="type"):
    """A search that failed or was denied."""

    error_code: ToolErrorCode


class SearchResultAnswer(Struct, tag="web_search_tool_result", tag_field="type"):
    """The result of a `web_search`. `result_content`: the result as the model sees it."""

    tool_use_id: str
    content: list[SearchResult] | SearchError
    result_content: str


class PageText(Struct, tag="text", tag_field="type"):
    """The text of a page."""

    media_type: Literal["text/plain"]
    data: str


class Page(Struct, tag="document", tag_field="type"):
    """A page as a document."""

    source: PageText
    title: str | None


class FetchedPage(Struct, tag="web_fetch_result", tag_field="type"):
    """A page that was retrieved."""

    url: str
    content: Page
    retrieved_at: None


class FetchError(Struct, tag="web_fetch_tool_result_error", tag_field="type"):
    """A page retrieval that failed or was denied."""

    error_code: ToolErrorCode


class FetchResultAnswer(Struct, tag="web_fetch_tool_result", tag_field="type"):
    """The result of a `web_fetch`. `result_content`: the result as the model sees it."""

    tool_use_id: str
    content: FetchedPage | FetchError
    result_content: str


class PythonOutput(Struct, tag="code_execution_output", tag_field="type"):
    """A file that the code made."""

    file_id: str


class PythonResult(Struct, tag="code_execution_result", tag_field="type"):
    """The output of code. `stdout` ends with the value of the last expression, `stderr` with the
    exception; `return_code` is 1 after an exception."""

    stdout: str
    stderr: str
    return_code: int
    content: list[PythonOutput]


class PythonError(Struct, tag="code_execution_tool_result_error", tag_field="type"):
    """Code that was denied or ran too long."""

    error_code: ToolErrorCode


class PythonResultAnswer(Struct, tag="code_execution_tool_result", tag_field="type"):
    """The result of a `code_execution`. `result_content`: the result as the model sees it."""

    tool_use_id: str
    content: PythonResult | PythonError
    result_content: str


class ShellOutput(Struct, tag="bash_code_execution_output", tag_field="type"):
    """A file that the commands made."""

    file_id: str


class ShellResult(Struct, tag="bash_code_execution_result", tag_field="type"):
    """The output of shell commands. `return_code`: the exit status."""

    stdout: str
    stderr: str
    return_code: int
    content: list[ShellOutput]


class ShellError(Struct, tag="bash_code_execution_tool_result_error", tag_field="type"):
    """Commands that were denied or ran too long."""

    error_code: ToolErrorCode


class ShellResultAnswer(Struct, tag="bash_code_execution_tool_result", tag_field="type"):
    """The result of a `bash_code_execution`. `result_content`: the result as the model sees it."""

    tool_use_id: str
    content: ShellResult | ShellError
    result_content: str


class AnsweredMcpToolUse(Struct, tag="mcp_tool_use", tag_field="type"):
    """A call of an MCP tool, or of a server tool that Anthropic has no type for. `server_name`: the
    MCP server, else the source of the tool."""

    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class McpText(Struct, tag="text", tag_field="type"):
    """The text of a result."""

    text: str


class McpResultAnswer(Struct, tag="mcp_tool_result", tag_field="type"):
    """The result of an `mcp_tool_use`, as the model sees it."""

    tool_use_id: str
    is_error: bool
    content: list[McpText]
