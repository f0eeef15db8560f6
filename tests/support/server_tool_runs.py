"""Events of runs in which server tools ran: every kind of tool, files and an approval."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from penstock.dialog import (
    ApprovalRequired,
    CustomActivity,
    Event,
    FileProduced,
    GenerateRequest,
    PartEnded,
    PartStarted,
    ProducedFile,
    PythonActivity,
    RunEnded,
    RunStarted,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    Text,
    TextDelta,
    ToolActivity,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
    Usage,
)

PYTHON = ServerTool(
    name="service_execute_python", kind="code_execution", source="built_in", label="Python code"
)
SHELL = ServerTool(name="service_shell", kind="shell", source="built_in", label="Shell command")
SEARCH = ServerTool(
    name="service_search_the_web", kind="web_search", source="built_in", label="Web search"
)
PAGE = ServerTool(
    name="service_website_content_extractor",
    kind="web_search",
    source="built_in",
    label="Web page extraction",
)
FILES = ServerTool(name="service_list_files", kind="file", source="built_in", label="File access")
MCP = ServerTool(name="time_now", kind="custom", source="mcp", label="now", server="time")

SOURCE = 'print("hi")'
PNG = b"\x89PNG picture"
HITS = (SearchHit(title="A", url="https://a.example/1"), SearchHit(title="B", url="https://b.test"))
# (tool, input, input with results): one call of each kind of tool.
CALLS: tuple[tuple[ServerTool, ToolActivity, ToolActivity], ...] = (
    (
        PYTHON,
        PythonActivity(code=SOURCE),
        PythonActivity(code=SOURCE, status="success", stdout="hi\n", result="4", images=(PNG,)),
    ),
    (
        SHELL,
        ShellActivity(commands=("ls", "false")),
        ShellActivity(
            commands=("ls", "false"), status="error", stdout="a\n", stderr="no\n", exit_code=1
        ),
    ),
    (
        SEARCH,
        SearchActivity(query="rivers"),
        SearchActivity(query="rivers", status="success", hits=HITS),
    ),
    (
        PAGE,
        SearchActivity(url="https://a.example/1"),
        SearchActivity(url="https://a.example/1", status="success", hits=HITS[:1]),
    ),
    (
        FILES,
        CustomActivity(arguments="{}"),
        CustomActivity(arguments="{}", status="success", content='{"files":[]}'),
    ),
    (
        MCP,
        CustomActivity(arguments='{"zone":"UTC"}'),
        CustomActivity(arguments='{"zone":"UTC"}', status="success", content="noon"),
    ),
)


def arguments_of(activity: ToolActivity) -> str:
    """Return the arguments with which a model makes a call."""
    match activity:
        case PythonActivity():
            return json.dumps({"code": activity.code})
        case ShellActivity():
            return json.dumps({"commands": activity.commands, "timeout_ms": 500})
        case SearchActivity():
            url = activity.url
            return json.dumps({"query": activity.query} if url is None else {"url": url})
        case CustomActivity():
            return activity.arguments


def call_events(
    part: int,
    round: int,
    tool: ServerTool,
    asked: ToolActivity,
    done: ToolActivity,
    files: tuple[ProducedFile, ...] = (),
    result: str | None = None,
    choice: int = 0,
) -> list[Event]:
    """Return the events of one call: its start, its end and its files. `result`: what the model
    sees; None: a text that names the call."""
    call = ToolCall(f"call_{choice}_{part}", tool.name, arguments_of(asked))
    text = f"result of {call.id}" if result is None else result
    run = ToolRun(
        round=round,
        call=call,
        tool=tool,
        activity=done,
        result=ToolResult(call.id, text, tool.name),
        files=files,
    )
    return [
        ToolCalling(choice, part, round, call, tool, asked),
        ToolCompleted(choice, part, run),
        *(FileProduced(choice, file) for file in files),
    ]


def text_events(part: int, text: str, choice: int = 0) -> list[Event]:
    return [
        PartStarted(choice, part, "text"),
        TextDelta(choice, part, text),
        PartEnded(choice, part, Text(text)),
    ]


def produced(name: str, container: str, number: int = 0) -> ProducedFile:
    return ProducedFile(
        id=f"file_run_r0_{number}",
        name=name,
        format=name.rpartition(".")[2],
        mime_type="text/plain",
        size_bytes=2,
        created_at=1_700_000_000,
        tool=PYTHON.name,
        round=0,
        turn=0,
        container_id=container,
        text="hi",
        preview="hi",
    )


def missing(name: str, container: str, number: int = 9) -> ProducedFile:
    """Return the placeholder of a requested file that no tool made."""
    return msgspec.structs.replace(
        produced(name, container, number),
        size_bytes=0,
        text=None,
        preview=None,
        code="not_produced",
        message="no tool made this file",
    )


def every_tool(request: GenerateRequest) -> Iterator[Event]:
    """Play a run that calls one tool of each kind in the first round, with a file and an approval,
    the shell again in the second, and writes text before, between and after. At the end there is
    a placeholder of a requested file."""
    container = request.container or ""
    yield RunStarted(request.model or "", 1_700_000_000, 3, session="sess_1")
    yield from text_events(0, "I look.")
    for part, (tool, asked, done) in enumerate(CALLS, 1):
        files = (produced("a.txt", container),) if tool is PYTHON else ()
        started, *rest = call_events(part, 0, tool, asked, done, files)
        yield started
        if tool is SHELL:
            assert isinstance(started, ToolCalling)
            arguments = started.call.arguments
            yield ApprovalRequired(0, part, "appr_1", "sess_1", 0, tool, arguments)
        yield from rest
    after = len(CALLS) + 1
    yield from text_events(after, "See [a](sandbox:/mnt/data/a.txt).")
    tool, asked, _ = CALLS[1]
    late = ShellActivity(commands=("sleep 9",), status="timeout", timed_out=True)
    yield from call_events(after + 1, 1, tool, ShellActivity(commands=("sleep 9",)), late)
    yield from text_events(after + 2, "Done.")
    yield FileProduced(0, missing("b.csv", container))
    yield TurnEnded(0, "stop", Usage(7, 4))
    yield RunEnded("completed", Usage(7, 4))
