"""The chat completions of a server become the events that an engine in this process sends."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from penstock.api.codecs.chat.decode import decode
from penstock.api.codecs.chat.encode import ChatStream
from penstock.api.codecs.dialect import AnswerIdentity
from penstock.base.errors import Unavailable
from penstock.cli.chat.completion_body import completion_body
from penstock.cli.chat.completion_events import CompletionEvents, sse_frames
from penstock.cli.chat.conversation import Turn
from penstock.dialog import (
    ApprovalRequired,
    Audio,
    CustomActivity,
    FileProduced,
    GenerateRequest,
    Image,
    Message,
    PartEnded,
    PartStarted,
    PythonActivity,
    PythonTool,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    SearchActivity,
    SearchTool,
    ShellActivity,
    ShellTool,
    Text,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
    Usage,
    Video,
)
from penstock.dialog.server_tools import ProducedFile, ServerTool
from penstock.dialog.tool_names import EXECUTE_PYTHON, SEARCH_THE_WEB, SHELL

USAGE = Usage(
    prompt_tokens=9,
    completion_tokens=5,
    cached_tokens=4,
    prompt_time_s=0.5,
    completion_time_s=0.25,
)
MCP = ServerTool("find", "custom", "user", "find")
FILE = ProducedFile(
    id="f", name="a.txt", format="txt", mime_type="text/plain", size_bytes=3, created_at=1,
    tool="service_shell", round=0, turn=0, container_id="", text="abc",
)  # fmt: skip


def through_http(events):
    """Return the events after they were encoded as frames and read again."""
    stream = ChatStream(AnswerIdentity("chatcmpl-1", "m"), GenerateRequest())
    data = b"".join(stream.encode(event) for event in events)

    async def chunks():
        for start in range(0, len(data), 7):
            yield data[start : start + 7]

    async def read():
        state = CompletionEvents()
        return [event async for frame in sse_frames(chunks()) for event in state.add(*frame)]

    return asyncio.run(read())


def test_text_and_reasoning_keep_their_parts_and_counts():
    events = [
        RunStarted("m", 5, 0),
        PartStarted(0, 0, "reasoning"),
        ReasoningDelta(0, 0, "Two"),
        ReasoningDelta(0, 0, "?"),
        PartEnded(0, 0, Reasoning("Two?")),
        PartStarted(0, 1, "text"),
        TextDelta(0, 1, "It is\n\n\u2028"),
        TextDelta(0, 1, "2."),
        PartEnded(0, 1, Text("It is\n\n\u20282.")),
        TurnEnded(0, "stop", USAGE),
        RunEnded("completed", USAGE),
    ]
    assert through_http(events) == events


def test_an_error_in_the_stream_ends_the_answer():
    failed = RunFailed.of(Unavailable("the engine is restarting"))
    (last,) = through_http([RunStarted("m", 5, 0), failed])
    assert isinstance(last, RunFailed)
    assert (last.message, last.code) == ("the engine is restarting", "unavailable")


CALLS = [
    (
        EXECUTE_PYTHON,
        PythonActivity(code="1+1"),
        PythonActivity(code="1+1", status="success", stdout="x", result="2", images=(b"png",)),
        "x\n2",
    ),
    (
        SHELL,
        ShellActivity(commands=("ls",)),
        ShellActivity(commands=("ls",), status="error", stderr="no", exit_code=2),
        "no",
    ),
    (
        MCP,
        CustomActivity(arguments='{"q":1}'),
        CustomActivity(arguments='{"q":1}', status="success", content="found"),
        "found",
    ),
    (
        SEARCH_THE_WEB,
        SearchActivity(query="fox"),
        SearchActivity(query="fox", status="success"),
        "",
    ),
]


@pytest.mark.parametrize(("tool", "begun", "done", "output"), CALLS)
def test_a_call_of_a_tool_keeps_its_input_and_result(tool, begun, done, output):
    call = ToolCall("call_1", tool.name, "{}")
    run = ToolRun(round=0, call=call, tool=tool, activity=done, result=ToolResult("call_1", "r"))
    events = through_http(
        [
            RunStarted("m", 5, 0),
            ToolCalling(0, 0, 0, call, tool, begun),
            ApprovalRequired(0, 0, "appr_1", "s", 0, tool, '{"a": 1}'),
            ToolCompleted(0, 0, run),
            FileProduced(0, FILE),
        ]
    )
    _, calling, waiting, completed, file = events
    assert (calling.tool, calling.activity) == (tool, begun)
    assert waiting.approval_id == "appr_1" and orjson.loads(waiting.arguments) == {"a": 1}
    assert (completed.run.tool, completed.run.activity) == (tool, done)
    assert completed.run.call == calling.call
    assert completed.run.result == ToolResult(calling.call.id, output, tool.name)
    assert file == FileProduced(0, FILE)


def test_the_server_reads_the_messages_and_settings_of_a_turn():
    messages = (
        Message("system", (Text("Be brief."),)),
        Message(
            "user",
            (
                Image(data=b"i", mime_type="image/png"),
                Audio(data=b"a", mime_type="audio/wav"),
                Video(data=b"v", mime_type="video/mp4"),
                Text("What?"),
            ),
        ),
        Message("assistant", (Text("I look."), ToolCall("c1", "service_shell", "{}"))),
        Message("tool", (ToolResult("c1", "a.txt", None),)),
        Message("assistant", (Text("A file."),)),
        Message("user", (Text("Sure?"),)),
    )
    settings = {
        "temperature": 0.5,
        "seed": 3,
        "stop": ["END"],
        "system": "Be brief.",
        "tools": {"search": True, "code": True, "shell": True},
    }
    body = completion_body(Turn(settings, messages, "cntr_1"), "m")
    read = decode(orjson.dumps(body)).request
    assert [message.role for message in read.messages] == [m.role for m in messages]
    assert read.messages[1] == messages[1] and read.messages[4:] == messages[4:]
    assert read.messages[2].parts[-1] == ToolCall("c1", "service_shell", "{}")
    assert read.messages[3].parts[0].text == "a.txt"
    assert (read.sampling.temperature, read.sampling.seed, read.stop) == (0.5, 3, ("END",))
    assert set(map(type, read.hosted)) == {SearchTool, PythonTool, ShellTool}
    assert (read.model, read.session, read.limits.truncate) == ("m", "cntr_1", True)


def test_a_turn_without_tools_has_no_session():
    body = completion_body(Turn({"tools": {"shell": False}}, (), "cntr_1"), "m")
    assert not {"session_id", "enable_shell", "tools"} & set(body)
