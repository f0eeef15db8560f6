"""Encodes calls of server tools as Anthropic's content blocks.

Anthropic has block types for web search, page retrieval, Python and the shell. All other tools use
the blocks of MCP tools, which have a free name and a text as result. `result_content`, a field of
our own, is the result as the model saw it; a client that sends the blocks back returns it.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from typing import Any, Final

import orjson

from penstock.api.codecs.agent_events import json_value
from penstock.dialog import (
    ProducedFile,
    PythonActivity,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    ToolActivity,
    ToolCall,
    ToolRun,
    tool_names,
)

SEARCH: Final = "web_search"
FETCH: Final = "web_fetch"
PYTHON: Final = "code_execution"
SHELL: Final = "bash_code_execution"
MCP: Final = "mcp"
BLOCK_NAMES: Final = {
    tool_names.SEARCH_THE_WEB.name: SEARCH,
    tool_names.EXTRACT_PAGE.name: FETCH,
    tool_names.EXECUTE_PYTHON.name: PYTHON,
    tool_names.SHELL.name: SHELL,
}
"""Our tool -> the name of Anthropic's tool with the same purpose."""
CALL_ID: Final = "call_"
SERVER_ID: Final = "srvtoolu_"
MCP_ID: Final = "mcptoolu_"


def call_block(call: ToolCall, tool: ServerTool) -> dict[str, Any]:
    """Return the block of a call."""
    name, block_id = _name(tool), _id(call, tool)
    if name == MCP:
        return {
            "type": "mcp_tool_use",
            "id": block_id,
            "name": tool.name,
            "server_name": tool.server or tool.source,
            "input": _input(call.arguments, name),
        }
    block = {"type": "server_tool_use", "id": block_id, "name": name}
    return {**block, "input": _input(call.arguments, name)}


def result_block(run: ToolRun) -> dict[str, Any]:
    """Return the block of a call's result."""
    name, block_id, text = _name(run.tool), _id(run.call, run.tool), run.result.text
    if name == MCP:
        return {
            "type": "mcp_tool_result",
            "tool_use_id": block_id,
            "is_error": run.result.is_error,
            "content": [{"type": "text", "text": text}],
        }
    kind = f"{name}_tool_result"
    content = _content(name, run) or {"type": f"{kind}_error", "error_code": _error_code(name, run)}
    return {"type": kind, "tool_use_id": block_id, "content": content, "result_content": text}


class ToolUsage:
    """Counts the calls of server tools."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def add(self, run: ToolRun) -> None:
        self._calls[_name(run.tool)] += 1

    def fields(self) -> dict[str, Any]:
        """Return the field `server_tool_use` of `usage`; {} if there were no calls."""
        if not self._calls:
            return {}
        counts = {
            "web_search_requests": self._calls[SEARCH],
            "web_fetch_requests": self._calls[FETCH],
        }
        return {"server_tool_use": counts}


def _name(tool: ServerTool) -> str:
    return BLOCK_NAMES.get(tool.name, MCP) if tool.source == "built_in" else MCP


def _id(call: ToolCall, tool: ServerTool) -> str:
    prefix = MCP_ID if _name(tool) == MCP else SERVER_ID
    return prefix + call.id.removeprefix(CALL_ID)


def _input(arguments: str, name: str) -> Any:
    """Return `input`: the arguments, and for the shell also Anthropic's `command`. Arguments that
    are not an object become {}."""
    try:
        value = orjson.loads(arguments)
    except ValueError:
        return {}
    if not isinstance(value, dict) or not value:
        return {}
    if name != SHELL:
        return json_value(arguments)
    commands = value.get("commands")
    lines = commands if isinstance(commands, list) else []
    return {"command": "\n".join(line for line in lines if isinstance(line, str)), **value}


def _content(name: str, run: ToolRun) -> Any:
    """Return the `content` of a result, or None for an error."""
    match name, run.activity:
        case "web_search", SearchActivity(status="success", hits=hits):
            return [_search_result(hit) for hit in hits]
        case "web_fetch", SearchActivity(status="success", hits=(hit, *_)):
            return _page(hit)
        case "code_execution", PythonActivity(status="success" | "error") as python:
            return {
                "type": "code_execution_result",
                "stdout": _lines(python.stdout, python.result),
                "stderr": _lines(python.stderr, python.exception),
                "return_code": int(python.status == "error"),
                "content": _outputs("code_execution_output", run.files),
            }
        case "bash_code_execution", ShellActivity(exit_code=int(), timed_out=False) as shell:
            return {
                "type": "bash_code_execution_result",
                "stdout": shell.stdout,
                "stderr": shell.stderr,
                "return_code": shell.exit_code,
                "content": _outputs("bash_code_execution_output", run.files),
            }
    return None


def _search_result(hit: SearchHit) -> dict[str, Any]:
    passage = {"description": hit.description, "content": hit.content}
    return {
        "type": "web_search_result",
        "url": hit.url,
        "title": hit.title,
        "encrypted_content": b64encode(orjson.dumps(passage)).decode(),
        "page_age": None,
    }


def _page(hit: SearchHit) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": hit.content}
    document = {"type": "document", "source": source, "title": hit.title or None}
    return {"type": "web_fetch_result", "url": hit.url, "content": document, "retrieved_at": None}


def _outputs(kind: str, files: tuple[ProducedFile, ...]) -> list[dict[str, Any]]:
    """Return the output files without the placeholders of missing files."""
    return [{"type": kind, "file_id": file.id} for file in files if file.code is None]


def _lines(text: str, more: str | None) -> str:
    """Return `text` and, on lines of its own, `more`."""
    if not more:
        return text
    return f"{text}\n{more}" if text and not text.endswith("\n") else text + more


def _error_code(name: str, run: ToolRun) -> str:
    """Return the code that Anthropic's types have for the error of a call."""
    activity: ToolActivity = run.activity
    if activity.status == "denied":
        return "unavailable"
    match activity:
        case PythonActivity(status="timeout") | ShellActivity(timed_out=True):
            return "execution_time_exceeded"
        case SearchActivity():
            return "url_not_accessible" if name == FETCH else "unavailable"
        case PythonActivity() | ShellActivity():
            return "unavailable"
    return "invalid_tool_input"  # the arguments did not fit, so that the tool did not run
