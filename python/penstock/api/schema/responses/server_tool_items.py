"""The Responses API: the output items of server tool calls, and such items as input."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema import fields as f

ItemStatus = Literal["in_progress", "completed", "incomplete"]
CallStatus = Literal["in_progress", "completed", "incomplete", "failed"]


class CodeLogs(Struct, tag="logs", tag_field="type"):
    """Output of code, its result and its exception."""

    logs: str


class CodeImage(Struct, tag="image", tag_field="type"):
    """An image that code showed, as a data: URL."""

    url: str


class CodeInterpreterCall(Struct, tag="code_interpreter_call", tag_field="type"):
    """A call of the Python interpreter that the server runs. `status` is `failed` if the code was
    denied or exceeded its time."""

    id: str
    status: CallStatus
    code: str
    container_id: str
    outputs: list[CodeLogs | CodeImage]


class ShellAction(Struct):
    """The commands of a shell call, and the limits that the model set for them."""

    commands: list[str]
    max_output_length: int | None
    timeout_ms: int | None


class ShellContainer(Struct, tag="container_reference", tag_field="type"):
    """The container in which the shell runs."""

    container_id: str


class ShellCall(Struct, tag="shell_call", tag_field="type"):
    """A call of the shell that the server runs. Its output is an item of its own."""

    id: str
    status: ItemStatus
    call_id: str
    action: ShellAction
    environment: ShellContainer


class ShellExit(Struct, tag="exit", tag_field="type"):
    """The commands ended. `exit_code`: -1 if they were killed or did not run."""

    exit_code: int


class ShellTimeout(Struct, tag="timeout", tag_field="type"):
    """The commands exceeded their time."""


class _ShellEntry(Struct, kw_only=True):
    stdout: str
    stderr: str
    outcome: ShellExit | ShellTimeout


class ShellStdout(_ShellEntry, tag="stdout", tag_field="type", kw_only=True):
    """Standard output of a shell call, in `text` and in `stdout`; `stderr` is empty."""

    text: str


class ShellStderr(_ShellEntry, tag="stderr", tag_field="type", kw_only=True):
    """Standard error of a shell call, in `text` and in `stderr`; `stdout` is empty."""

    text: str


class ShellOutcome(_ShellEntry, tag="outcome", tag_field="type", kw_only=True):
    """The final status of a shell call; `stdout` and `stderr` are empty."""

    status: str
    timed_out: bool
    exit_code: int | UnsetType = UNSET


ShellEntry = ShellStdout | ShellStderr | ShellOutcome


class ShellCallOutput(Struct, tag="shell_call_output", tag_field="type"):
    """The output of a shell call that the server ran."""

    id: str
    status: ItemStatus
    call_id: str
    output: list[ShellEntry]


class SearchSource(Struct, tag="url", tag_field="type"):
    """A page that a search found."""

    url: str


class SearchAction(Struct, tag="search", tag_field="type"):
    """A web search. `sources`: the pages that it found, empty until it is complete."""

    query: str
    queries: list[str]
    sources: list[SearchSource]


class OpenPageAction(Struct, tag="open_page", tag_field="type"):
    """The retrieval of a web page."""

    url: str


class WebSearchCall(Struct, tag="web_search_call", tag_field="type"):
    """A web search of the server, or the retrieval of a page."""

    id: str
    status: CallStatus
    action: SearchAction | OpenPageAction


class McpTextContent(Struct, tag="text", tag_field="type"):
    """Text of an error."""

    text: str


class McpError(Struct, tag="mcp_tool_execution_error", tag_field="type"):
    """The error with which a call of an MCP tool failed."""

    content: list[McpTextContent]


class McpCall(Struct, tag="mcp_call", tag_field="type"):
    """A call of a tool of an MCP server. `name`: the name by which the model calls the tool;
    `arguments`: JSON text."""

    id: str
    status: CallStatus
    server_label: str
    name: str
    arguments: str
    output: str | None
    error: McpError | None


class InputCodeOutput(Struct):
    """Output of an earlier Python call: `logs` or the `url` of an image."""

    type: Annotated[str | None, Meta(description="logs, image or another.")] = None
    logs: str | None = None
    url: str | None = None


class InputCodeInterpreterCall(Struct, tag="code_interpreter_call", tag_field="type", kw_only=True):
    """A Python call of an earlier answer."""

    code: str | None = None
    outputs: list[InputCodeOutput] | None = None
    container_id: str | None = None
    id: f.Id | None = None
    status: str | None = None


class InputShellAction(Struct):
    """The commands of an earlier shell call."""

    commands: list[str]
    max_output_length: int | None = None
    timeout_ms: int | None = None


class InputShellCall(Struct, tag="shell_call", tag_field="type", kw_only=True):
    """A shell call of an earlier answer."""

    call_id: f.Id
    action: InputShellAction
    id: str | None = None
    status: str | None = None


class InputShellOutcome(Struct):
    """The end of a shell call."""

    type: Annotated[str | None, Meta(description="exit, timeout or another.")] = None
    exit_code: int | None = None


class InputShellEntry(Struct):
    """A piece of a shell's output: OpenAI's `stdout`, `stderr` and `outcome`, or an entry whose
    `type` is stdout, stderr or outcome."""

    type: Annotated[str | None, Meta(description="stdout, stderr, outcome or another.")] = None
    text: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    outcome: InputShellOutcome | None = None
    exit_code: int | None = None
    timed_out: bool | None = None
    status: str | None = None


class InputShellCallOutput(Struct, tag="shell_call_output", tag_field="type", kw_only=True):
    """The output of a shell call of an earlier answer."""

    call_id: f.Id
    output: list[InputShellEntry]
    max_output_length: int | None = None
    id: str | None = None
    status: str | None = None


class InputSource(Struct):
    """A page that an earlier search found."""

    url: str | None = None


class InputSearchAction(Struct):
    """A search (`query` or `queries`) or the retrieval of a page (`url`)."""

    type: Annotated[str | None, Meta(description="search, open_page or another.")] = None
    query: str | None = None
    queries: list[str] | None = None
    url: str | None = None
    sources: list[InputSource] | None = None


class InputWebSearchCall(Struct, tag="web_search_call", tag_field="type", kw_only=True):
    """A web search of an earlier answer."""

    action: InputSearchAction | None = None
    id: f.Id | None = None
    status: str | None = None


class InputMcpCall(Struct, tag="mcp_call", tag_field="type", kw_only=True):
    """A call of an MCP tool of an earlier answer, with its `output` or its `error`."""

    name: f.NonEmpty
    arguments: str
    server_label: str | None = None
    output: str | None = None
    error: Annotated[Any, Meta(description="Any value.")] = None
    id: f.Id | None = None
    status: str | None = None


InputServerToolItem = (
    InputCodeInterpreterCall
    | InputShellCall
    | InputShellCallOutput
    | InputWebSearchCall
    | InputMcpCall
)
