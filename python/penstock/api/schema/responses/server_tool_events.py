"""The Responses API: the stream events of server tool calls. The field `type` holds an event's
name."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from penstock.api.schema.agent import (
    AgenticToolApprovalRequired,
    AgenticToolCallProgress,
    FileObject,
)
from penstock.api.schema.responses.server_tool_items import ShellEntry


class NumberedEvent(Struct, tag_field="type", kw_only=True):
    """Base of all events: `sequence_number` counts the events of a stream from 0."""

    sequence_number: int


class InItem(NumberedEvent, kw_only=True):
    """Base of the events of one output item."""

    item_id: str
    output_index: int


class CodeInterpreterCallInProgress(
    InItem, tag="response.code_interpreter_call.in_progress", kw_only=True
):
    """Event: a Python call begins."""


class CodeInterpreterCallCodeDelta(
    InItem, tag="response.code_interpreter_call_code.delta", kw_only=True
):
    """Event: the next piece of the code."""

    delta: str


class CodeInterpreterCallCodeDone(
    InItem, tag="response.code_interpreter_call_code.done", kw_only=True
):
    """Event: the code is complete."""

    code: str


class CodeInterpreterCallInterpreting(
    InItem, tag="response.code_interpreter_call.interpreting", kw_only=True
):
    """Event: the code runs."""


class CodeInterpreterCallCompleted(
    InItem, tag="response.code_interpreter_call.completed", kw_only=True
):
    """Event: the code has run."""


class WebSearchCallInProgress(InItem, tag="response.web_search_call.in_progress", kw_only=True):
    """Event: a web search begins."""


class WebSearchCallSearching(InItem, tag="response.web_search_call.searching", kw_only=True):
    """Event: the web search runs."""


class WebSearchCallCompleted(InItem, tag="response.web_search_call.completed", kw_only=True):
    """Event: the web search is complete."""


class McpCallInProgress(InItem, tag="response.mcp_call.in_progress", kw_only=True):
    """Event: a call of an MCP tool begins."""


class McpCallArgumentsDelta(InItem, tag="response.mcp_call_arguments.delta", kw_only=True):
    """Event: the next piece of the arguments, as JSON text."""

    delta: str


class McpCallArgumentsDone(InItem, tag="response.mcp_call_arguments.done", kw_only=True):
    """Event: the arguments are complete."""

    arguments: str


class McpCallCompleted(InItem, tag="response.mcp_call.completed", kw_only=True):
    """Event: the call of the MCP tool is complete."""


class McpCallFailed(InItem, tag="response.mcp_call.failed", kw_only=True):
    """Event: the call of the MCP tool failed."""


class _InCommand(InItem, kw_only=True):
    command_index: int


class ShellCallCommandAdded(_InCommand, tag="response.shell_call_command.added", kw_only=True):
    """Event: a command of a shell call begins. `command` is still empty."""

    command: str


class ShellCallCommandDelta(_InCommand, tag="response.shell_call_command.delta", kw_only=True):
    """Event: the next piece of a command."""

    delta: str


class ShellCallCommandDone(_InCommand, tag="response.shell_call_command.done", kw_only=True):
    """Event: a command is complete."""

    command: str


class ShellOutputDelta(Struct):
    """The next piece of the output of a shell call."""

    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET


class ShellCallOutputContentDelta(
    _InCommand, tag="response.shell_call_output_content.delta", kw_only=True
):
    """Event: the next piece of output, of all commands together."""

    delta: ShellOutputDelta


class ShellCallOutputContentDone(
    _InCommand, tag="response.shell_call_output_content.done", kw_only=True
):
    """Event: the output is complete."""

    output: list[ShellEntry]


class NumberedApprovalRequired(
    AgenticToolApprovalRequired, tag="agentic_tool_approval_required", kw_only=True
):
    """Event: a tool call waits for `POST /v1/agent/approvals/{approval_id}`. Without an answer, the
    call is denied after five minutes."""

    sequence_number: int


class NumberedFileProduced(FileObject, tag="file_produced", tag_field="type", kw_only=True):
    """Event: a server tool made a file."""

    sequence_number: int


ServerToolEvent = (
    CodeInterpreterCallInProgress
    | CodeInterpreterCallCodeDelta
    | CodeInterpreterCallCodeDone
    | CodeInterpreterCallInterpreting
    | CodeInterpreterCallCompleted
    | WebSearchCallInProgress
    | WebSearchCallSearching
    | WebSearchCallCompleted
    | McpCallInProgress
    | McpCallArgumentsDelta
    | McpCallArgumentsDone
    | McpCallCompleted
    | McpCallFailed
    | ShellCallCommandAdded
    | ShellCallCommandDelta
    | ShellCallCommandDone
    | ShellCallOutputContentDelta
    | ShellCallOutputContentDone
    | AgenticToolCallProgress
    | NumberedApprovalRequired
    | NumberedFileProduced
)
