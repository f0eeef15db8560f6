"""Calls, events and files of the tools that the server runs, in all dialects."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

NoChoices = Annotated[
    list[None],
    Meta(max_length=0, description="Only in chat streams, whose clients read events as chunks."),
]
ToolType = Literal["code_execution", "web_search", "shell", "custom"]


class AgenticToolCall(Struct):
    """A tool call that the server ran. `arguments`: JSON text; `file_ids`: the files that the call
    made."""

    round: int
    name: str
    arguments: str
    result_content: str
    result_images_base64: list[str] | UnsetType = UNSET
    file_ids: list[str] | UnsetType = UNSET


class ToolProgressData(Struct, kw_only=True):
    """Input and results of a tool call. `tool_type` determines whether the input is `code`,
    `commands`, `query` or `arguments`. Results are present only in the phase `complete`."""

    tool_type: ToolType
    code: str | UnsetType = UNSET
    commands: list[str] | UnsetType = UNSET
    query: str | UnsetType = UNSET
    arguments: Any | UnsetType = UNSET
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    result: str | UnsetType = UNSET
    exception: str | UnsetType = UNSET
    exit_code: int | UnsetType = UNSET
    status: str | UnsetType = UNSET
    timed_out: bool | UnsetType = UNSET
    working_directory: str | UnsetType = UNSET
    execution_time_ms: int | UnsetType = UNSET
    images_base64: list[str] | UnsetType = UNSET
    video_frames_base64: list[str] | UnsetType = UNSET
    video_frame_count: int | UnsetType = UNSET
    results_count: int | UnsetType = UNSET
    sources: list[str] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class AgenticToolCallProgress(Struct, tag="agentic_tool_call_progress", tag_field="type"):
    """Stream event: a tool call of the server has started or is complete. `sequence_number`: only
    in the Responses API."""

    round: int
    tool_name: str
    phase: Literal["calling", "complete"]
    data: ToolProgressData
    sequence_number: int | UnsetType = UNSET
    choices: NoChoices | UnsetType = UNSET


class ApprovalTool(Struct):
    """The tool whose call waits for approval. `label`: a name to show to people."""

    source: Literal["built_in", "user", "mcp", "external"]
    kind: Literal["code_execution", "web_search", "shell", "file", "custom", "external"]
    label: str


class AgenticToolApprovalRequired(Struct, tag="agentic_tool_approval_required", tag_field="type"):
    """Stream event: a tool call waits for `POST /v1/agent/approvals/{approval_id}`. Without an
    answer, the call is denied after five minutes."""

    approval_id: str
    session_id: str
    round: int
    tool: ApprovalTool
    arguments: Any
    choices: NoChoices | UnsetType = UNSET


class FileSource(Struct):
    """The tool that made a file, and the round and turn of the session in which it did."""

    tool: str
    round: int
    turn: int


class FileObject(Struct):
    """A file with its body in `text` or `data_base64`; the data of the event `file_produced`. A
    body over 8 MiB must be fetched from `/v1/files/{id}/content`. If there is no body, `code` and
    `message` say why."""

    id: str
    name: str
    format: str
    mime_type: str
    bytes: int
    created_at: Annotated[int, Meta(description="Unix seconds.")]
    purpose: Annotated[str, Meta(description="`agent_output` or `user_data`.")]
    source: FileSource
    text: str | UnsetType = UNSET
    preview: str | UnsetType = UNSET
    data_base64: str | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
