"""Builds the output items of server tool calls, and the stream events of these items."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final, Literal, TypeVar

import msgspec
import orjson

from penstock.dialog import (
    CustomActivity,
    PythonActivity,
    SearchActivity,
    ShellActivity,
    ToolCalling,
    ToolRun,
)

ToolItemKind = Literal[
    "code_interpreter_call", "shell_call", "shell_call_output", "web_search_call", "mcp_call"
]
ToolItemStatus = Literal["in_progress", "completed", "incomplete", "failed"]
StreamEvents = list[tuple[str, dict[str, Any]]]
_Activity = TypeVar("_Activity", PythonActivity, ShellActivity, SearchActivity)

TOOL_PREFIXES: Final[dict[ToolItemKind, str]] = {
    "code_interpreter_call": "ci_",
    "shell_call": "sc_",
    "shell_call_output": "sco_",
    "web_search_call": "ws_",
    "mcp_call": "mcp_",
}
# OpenAI's type of a shell's outcome requires an exit code, also of a shell that did not exit.
NO_EXIT_CODE: Final = -1


def kind_of(event: ToolCalling) -> ToolItemKind | None:
    """Return the kind of the item for a call; None if no item represents the call, because
    OpenAI's API has no type for it that a client would not try to execute."""
    match event.activity:
        case PythonActivity():
            return "code_interpreter_call"
        case ShellActivity():
            return "shell_call"
        case SearchActivity():
            return "web_search_call"
        case CustomActivity():
            return "mcp_call" if event.tool.source == "mcp" else None


class ToolItem(msgspec.Struct):
    """One output item of a server tool call. A shell call has two items: the call and its output.

    `index`: position in `output`. `calling`: the start of the call. `container`: the id of the
    container in which the tool runs. `run`: the completed call.
    """

    id: str
    index: int
    choice: int
    kind: ToolItemKind
    calling: ToolCalling
    container: str
    status: ToolItemStatus = "in_progress"
    run: ToolRun | None = None

    def complete(self, run: ToolRun) -> None:
        """Add the results of the call and set the final status."""
        self.run = run
        self.status = _final_status(self.kind, run.activity.status)

    def started(self) -> dict[str, Any]:
        """Return the JSON of the item at the start of the call, before its input."""
        return {**self._head("in_progress"), **self._started_fields()}

    def shown(self) -> dict[str, Any]:
        """Return the JSON of the item in its current state."""
        return {**self._head(self.status), **self._fields()}

    def _head(self, status: ToolItemStatus) -> dict[str, Any]:
        return {"type": self.kind, "id": self.id, "status": status}

    def _started_fields(self) -> dict[str, Any]:
        match self.kind:
            case "code_interpreter_call":
                return {"code": "", "container_id": self.container, "outputs": []}
            case "shell_call":
                return {**self._fields(), "action": {**self._shell_action(), "commands": []}}
            case "shell_call_output":
                return {"call_id": self.calling.call.id, "output": []}
            case "web_search_call":
                return {"action": self._search_action(None)}
            case "mcp_call":
                return {**self._mcp_name(), "arguments": "", "output": None, "error": None}

    def _fields(self) -> dict[str, Any]:
        call = self.calling.call
        run = self.run
        match self.kind:
            case "code_interpreter_call":
                outputs = python_outputs(run) if run is not None else []
                code = self._input(PythonActivity).code
                return {"code": code, "container_id": self.container, "outputs": outputs}
            case "shell_call":
                place = {"type": "container_reference", "container_id": self.container}
                return {"call_id": call.id, "action": self._shell_action(), "environment": place}
            case "shell_call_output":
                return {"call_id": call.id, "output": shell_outputs(run) if run else []}
            case "web_search_call":
                return {"action": self._search_action(run)}
            case "mcp_call":
                return {**self._mcp_name(), "arguments": call.arguments, **_mcp_result(run)}

    def _input(self, kind: type[_Activity]) -> _Activity:
        activity = self.calling.activity
        assert isinstance(activity, kind)
        return activity

    def _mcp_name(self) -> dict[str, Any]:
        return {"server_label": self.calling.tool.server, "name": self.calling.tool.name}

    def _shell_action(self) -> dict[str, Any]:
        commands = list(self._input(ShellActivity).commands)
        limits = _integers(self.calling.call.arguments, "max_output_length", "timeout_ms")
        return {"commands": commands, **limits}

    def _search_action(self, run: ToolRun | None) -> dict[str, Any]:
        asked = self._input(SearchActivity)
        if asked.url is not None:
            return {"type": "open_page", "url": asked.url}
        query = asked.query or ""
        found = run.activity.hits if run and isinstance(run.activity, SearchActivity) else ()
        sources = [{"type": "url", "url": url} for url in dict.fromkeys(hit.url for hit in found)]
        return {"type": "search", "query": query, "queries": [query], "sources": sources}


def calling_events(item: ToolItem) -> StreamEvents:
    """Return the events for the start of a call: its item begins and has its input. A shell call
    then is complete, because its output is an item of its own."""
    place = {"item_id": item.id, "output_index": item.index}
    events: StreamEvents = [_added(item)]
    match item.calling.activity:
        case PythonActivity(code=code):
            return [
                *events,
                ("response.code_interpreter_call.in_progress", place),
                ("response.code_interpreter_call_code.delta", {**place, "delta": code}),
                ("response.code_interpreter_call_code.done", {**place, "code": code}),
                ("response.code_interpreter_call.interpreting", place),
            ]
        case ShellActivity(commands=commands):
            for number, command in enumerate(commands):
                where = {**place, "command_index": number}
                name = "response.shell_call_command"
                events += [
                    (f"{name}.added", {**where, "command": ""}),
                    (f"{name}.delta", {**where, "delta": command}),
                    (f"{name}.done", {**where, "command": command}),
                ]
            return [*events, _done(item)]
        case SearchActivity():
            return [
                *events,
                ("response.web_search_call.in_progress", place),
                ("response.web_search_call.searching", place),
            ]
        case CustomActivity():
            arguments = item.calling.call.arguments
            return [
                *events,
                ("response.mcp_call.in_progress", place),
                ("response.mcp_call_arguments.delta", {**place, "delta": arguments}),
                ("response.mcp_call_arguments.done", {**place, "arguments": arguments}),
            ]


def completed_events(item: ToolItem, run: ToolRun) -> StreamEvents:
    """Return the events for the end of a call. `item`: the item that has the results: of a shell
    call the output, of any other call its only item."""
    place = {"item_id": item.id, "output_index": item.index}
    status = _final_status(item.kind, run.activity.status)
    events: StreamEvents = []
    match item.kind:
        case "shell_call_output":
            where = {**place, "command_index": 0}
            name, outputs = "response.shell_call_output_content", shell_outputs(run)
            events.append(_added(item))
            for stream in ("stdout", "stderr"):
                written = "".join(output[stream] for output in outputs)
                if written:
                    events.append((f"{name}.delta", {**where, "delta": {stream: written}}))
            events.append((f"{name}.done", {**where, "output": outputs}))
        case "mcp_call":
            events.append((f"response.mcp_call.{status}", place))
        case "code_interpreter_call" | "web_search_call" if status == "completed":
            events.append((f"response.{item.kind}.completed", place))
        case _:
            pass  # OpenAI has no event for other calls that fail
    return [*events, _done(item)]


def python_outputs(run: ToolRun) -> list[dict[str, Any]]:
    """Return the `outputs` of a Python call: what it printed, its result and its exception as one
    log, then its images."""
    activity = run.activity
    assert isinstance(activity, PythonActivity)
    texts = (activity.stdout, activity.stderr, activity.result, activity.exception)
    lines = [text if text.endswith("\n") else text + "\n" for text in texts if text]
    log = "".join(lines).removesuffix("\n")
    images = (b64encode(image).decode() for image in activity.images)
    return [
        *([{"type": "logs", "logs": log}] if log else []),
        *({"type": "image", "url": f"data:image/png;base64,{image}"} for image in images),
    ]


def shell_outputs(run: ToolRun) -> list[dict[str, Any]]:
    """Return the `output` of a shell call: an entry for stdout, one for stderr and one for the
    outcome.

    Each entry has the fields of the entry's `type` and the fields of OpenAI's entries, which have
    no `type`. The texts of all entries, joined, are the output of the call in both forms.
    """
    activity = run.activity
    assert isinstance(activity, ShellActivity)
    code = NO_EXIT_CODE if activity.exit_code is None else activity.exit_code
    outcome = {"type": "timeout"} if activity.timed_out else {"type": "exit", "exit_code": code}
    common = {"stdout": "", "stderr": "", "outcome": outcome}
    texts = {"stdout": activity.stdout, "stderr": activity.stderr}
    if activity.status == "denied":
        texts["stderr"] = texts["stderr"] or _denial(run.result.text)
    known = {} if activity.exit_code is None else {"exit_code": activity.exit_code}
    return [
        *(
            {"type": stream, "text": text, **common, stream: text}
            for stream, text in texts.items()
            if text
        ),
        {
            "type": "outcome",
            "status": activity.status,
            **known,
            "timed_out": activity.timed_out,
            **common,
        },
    ]


def _added(item: ToolItem) -> tuple[str, dict[str, Any]]:
    told = {"output_index": item.index, "item": item.started()}
    return "response.output_item.added", told


def _done(item: ToolItem) -> tuple[str, dict[str, Any]]:
    return "response.output_item.done", {"output_index": item.index, "item": item.shown()}


def _final_status(kind: ToolItemKind, status: str) -> ToolItemStatus:
    """Return the status of the item of a completed call. Code that raises an exception and
    commands that fail did run, so their items are complete."""
    match kind:
        case "shell_call" | "shell_call_output":
            return "completed"
        case "code_interpreter_call":
            return "failed" if status in ("timeout", "denied") else "completed"
        case "web_search_call" | "mcp_call":
            return "failed" if status in ("error", "denied") else "completed"


def _mcp_result(run: ToolRun | None) -> dict[str, Any]:
    """Return the result of an MCP call as `output` or, if the call failed, as `error`."""
    if run is None:
        return {"output": None, "error": None}
    text = run.result.text
    if _final_status("mcp_call", run.activity.status) == "completed":
        return {"output": text, "error": None}
    content = [{"type": "text", "text": text}]
    return {"output": None, "error": {"type": "mcp_tool_execution_error", "content": content}}


def _integers(arguments: str, *names: str) -> dict[str, int | None]:
    """Return fields of the arguments of a call; None for a field that is not an integer."""
    try:
        values = orjson.loads(arguments)
    except ValueError:
        values = None
    given = values if isinstance(values, dict) else {}
    return {name: v if type(v := given.get(name)) is int else None for name in names}


def _denial(result: str) -> str:
    """Return the message in the result of a denied call."""
    try:
        values = orjson.loads(result)
    except ValueError:
        return result
    message = values.get("exception") if isinstance(values, dict) else None
    return message if isinstance(message, str) else result
