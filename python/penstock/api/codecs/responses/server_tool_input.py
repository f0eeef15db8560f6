"""Decodes items of server tool calls that a client sends as input: earlier answers of this server
or of OpenAI's become calls and results of this server's tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from penstock.api.schema.responses import server_tool_items as s
from penstock.dialog import Message, ToolCall, ToolResult
from penstock.dialog.tool_names import EXECUTE_PYTHON, EXTRACT_PAGE, SEARCH_THE_WEB, SHELL


def decode_server_tool_item(
    item: s.InputServerToolItem, fallback_id: str
) -> tuple[ToolCall | None, Message | None]:
    """Return (call, tool message with its result). The call is None for the output of a shell call,
    the message is None for a shell call. Both are None for a web action without query and URL.

    `fallback_id`: the id of the call if the item has none.
    """
    match item:
        case s.InputShellCall():
            return ToolCall(item.call_id, SHELL.name, _json(_shell_arguments(item.action))), None
        case s.InputShellCallOutput():
            return None, _result(item.call_id, SHELL.name, _json(_shell_result(item.output)))
        case s.InputCodeInterpreterCall():
            arguments, result = _json({"code": item.code or ""}), _python_result(item)
            name = EXECUTE_PYTHON.name
        case s.InputWebSearchCall():
            asked = _search_arguments(item.action)
            if asked is None:
                return None, None
            name, arguments = asked
            result = _search_result(item)
        case s.InputMcpCall():
            name, arguments, result = item.name, item.arguments, _mcp_result(item)
    id = item.id or fallback_id
    return ToolCall(id, name, arguments), _result(id, name, result, is_error=_failed(item))


def _result(id: str, name: str, text: str, *, is_error: bool = False) -> Message:
    return Message("tool", (ToolResult(id, text, name, is_error),))


def _failed(item: s.InputServerToolItem) -> bool:
    return item.status == "failed" or getattr(item, "error", None) is not None


def _python_result(item: s.InputCodeInterpreterCall) -> str:
    outputs = item.outputs or ()
    logs = "\n".join(output.logs for output in outputs if output.logs)
    images = sum(output.url is not None for output in outputs)
    return _json(
        {
            "status": "error" if _failed(item) else "success",
            **({"stdout": logs} if logs else {}),
            **({"images_generated": images} if images else {}),
        }
    )


def _shell_arguments(action: s.InputShellAction) -> dict[str, Any]:
    limits = {"timeout_ms": action.timeout_ms, "max_output_length": action.max_output_length}
    given = {name: value for name, value in limits.items() if value is not None}
    return {"commands": action.commands, **given}


def _shell_result(entries: Iterable[s.InputShellEntry]) -> dict[str, Any]:
    """Return the result of the shell tool for an output in OpenAI's form, in this server's form
    (entries with `type`) or in both."""
    written = {"stdout": "", "stderr": ""}
    exit_code: int | None = None
    timed_out = False
    for entry in entries:
        texts = {"stdout": entry.stdout, "stderr": entry.stderr}
        if entry.stdout is None and entry.stderr is None and entry.type in written:
            texts[entry.type] = entry.text
        for stream, text in texts.items():
            written[stream] += text or ""
        outcome = entry.outcome or s.InputShellOutcome(exit_code=entry.exit_code)
        exit_code = exit_code if outcome.exit_code is None else outcome.exit_code
        timed_out = timed_out or outcome.type == "timeout" or entry.timed_out is True
    status = "timeout" if timed_out else "error" if exit_code else "success"
    return {"status": status, **written, "exit_code": exit_code, "timed_out": timed_out}


def _search_arguments(action: s.InputSearchAction | None) -> tuple[str, str] | None:
    """Return (tool, arguments) of a web action; None if it has neither query nor URL."""
    if action is None:
        return None
    query = action.query or "; ".join(action.queries or ())
    if query:
        return SEARCH_THE_WEB.name, _json({"query": query})
    if action.url:
        return EXTRACT_PAGE.name, _json({"url": action.url})
    return None


def _search_result(item: s.InputWebSearchCall) -> str:
    """Return the addresses of the pages that were found: the item does not hold their content."""
    sources = item.action.sources if item.action is not None else None
    urls = [source.url for source in sources or () if source.url]
    return _json({"sources": urls, **({"error": "the call failed"} if _failed(item) else {})})


def _mcp_result(item: s.InputMcpCall) -> str:
    if item.output is not None:
        return item.output
    return _json({"error": item.error}) if item.error is not None else ""


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
