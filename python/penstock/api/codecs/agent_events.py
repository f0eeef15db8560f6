"""Encodes the calls of server tools, approvals and output files, which are the same in all
dialects."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from penstock.dialog import (
    ApprovalRequired,
    CustomActivity,
    FileProduced,
    ProducedFile,
    PythonActivity,
    SearchActivity,
    ShellActivity,
    ToolActivity,
    ToolCalling,
    ToolCompleted,
    ToolRun,
)

PROGRESS: Final = "agentic_tool_call_progress"
APPROVAL: Final = "agentic_tool_approval_required"
FILE: Final = "file_produced"
NO_MORE: Final[Mapping[str, Any]] = {}

AgentEvent = ToolCalling | ToolCompleted | ApprovalRequired | FileProduced


def agent_event(event: AgentEvent) -> tuple[str, dict[str, Any]]:
    """Return the name and the data of the SSE event that reports `event`."""
    match event:
        case ToolCalling():
            data = _input(event.activity)
            return PROGRESS, _progress(event.round, event.tool.name, "calling", data)
        case ToolCompleted(run=run):
            data = _result(run.activity)
            return PROGRESS, _progress(run.round, run.tool.name, "complete", data)
        case ApprovalRequired():
            return APPROVAL, _approval(event)
        case FileProduced():
            return FILE, file_object(event.file)


def agent_frame(event: AgentEvent, more: Mapping[str, Any] = NO_MORE) -> bytes:
    """Return the named SSE frame that reports `event`. `more`: fields that the dialect adds."""
    name, data = agent_event(event)
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps({**data, **more}))


def agentic_tool_call(run: ToolRun) -> dict[str, Any]:
    """Return the record of a completed call for `agentic_tool_calls`."""
    entry: dict[str, Any] = {
        "round": run.round,
        "name": run.tool.name,
        "arguments": run.call.arguments,
        "result_content": run.result.text,
    }
    if isinstance(run.activity, PythonActivity) and run.activity.images:
        entry["result_images_base64"] = _base64(run.activity.images)
    if run.files:
        entry["file_ids"] = [file.id for file in run.files]
    return entry


def file_object(file: ProducedFile) -> dict[str, Any]:
    """Return the File object of an output file, with its body unless the body was elided."""
    fields: dict[str, Any] = {
        "id": file.id,
        "name": file.name,
        "format": file.format,
        "mime_type": file.mime_type,
        "bytes": file.size_bytes,
        "created_at": file.created_at,
        "purpose": file.purpose,
        "source": {"tool": file.tool, "round": file.round, "turn": file.turn},
    }
    body = {
        "text": file.text,
        "preview": file.preview,
        "data_base64": None if file.data is None else b64encode(file.data).decode(),
        "code": file.code,
        "message": file.message,
    }
    return fields | {key: value for key, value in body.items() if value is not None}


def json_value(text: str) -> Any:
    """Return JSON text as a value for `orjson.dumps`, with its numbers and keys as written; text
    that is not JSON as a string. Empty text is an empty object."""
    if not text.strip():
        return {}
    try:
        orjson.loads(text)
    except ValueError:
        return text
    # Valid JSON has line breaks only between tokens. A line of an SSE frame must not contain any.
    return orjson.Fragment(text.replace("\r", " ").replace("\n", " "))


def _progress(number: int, name: str, phase: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": PROGRESS, "round": number, "tool_name": name, "phase": phase, "data": data}


def _approval(event: ApprovalRequired) -> dict[str, Any]:
    tool = event.tool
    return {
        "type": APPROVAL,
        "approval_id": event.approval_id,
        "session_id": event.session,
        "round": event.round,
        "tool": {"source": tool.source, "kind": tool.kind, "label": tool.label},
        "arguments": json_value(event.arguments),
    }


def _input(activity: ToolActivity) -> dict[str, Any]:
    """Return the `data` of a call that starts."""
    match activity:
        case PythonActivity():
            return {"tool_type": "code_execution", "code": activity.code}
        case ShellActivity():
            return {"tool_type": "shell", "commands": activity.commands}
        case SearchActivity():
            query = {} if activity.query is None else {"query": activity.query}
            return {"tool_type": "web_search", **query}
        case CustomActivity():
            return {"tool_type": "custom", "arguments": json_value(activity.arguments)}


def _result(activity: ToolActivity) -> dict[str, Any]:
    """Return the `data` of a completed call. Empty results are left out."""
    match activity:
        case PythonActivity():
            return {"tool_type": "code_execution", **_python_result(activity)}
        case ShellActivity():
            return {**_input(activity), **_shell_result(activity)}
        case SearchActivity():
            sources = list(dict.fromkeys(_domain(hit.url) for hit in activity.hits))
            return {
                "tool_type": "web_search",
                "results_count": len(activity.hits),
                **_given(sources=[source for source in sources if source]),
            }
        case CustomActivity():
            return {"tool_type": "custom", "content": activity.content}


def _python_result(activity: PythonActivity) -> dict[str, Any]:
    return _given(
        stdout=activity.stdout,
        stderr=activity.stderr,
        result=activity.result,
        exception=activity.exception,
        images_base64=_base64(activity.images),
        video_frames_base64=_base64(activity.video_frames),
        video_frame_count=len(activity.video_frames),
        working_directory=activity.working_directory,
    ) | {"execution_time_ms": activity.execution_time_ms}


def _shell_result(activity: ShellActivity) -> dict[str, Any]:
    exit_code = {} if activity.exit_code is None else {"exit_code": activity.exit_code}
    return {
        **_given(stdout=activity.stdout, stderr=activity.stderr, status=activity.status),
        **exit_code,
        **_given(working_directory=activity.working_directory),
        "timed_out": activity.timed_out,
    }


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


def _base64(files: tuple[bytes, ...]) -> list[str]:
    return [b64encode(file).decode() for file in files]


def _domain(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
