"""Server tools on chat: OpenAI's client reads answers and streams with the service's own events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.dialog import (
    ApprovalRequired,
    FileProduced,
    GenerateRequest,
    PartEnded,
    PartStarted,
    ProducedFile,
    PythonActivity,
    RunEnded,
    RunStarted,
    ServerTool,
    Text,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
)
from penstock.dialog.events import Finish
from tests.support.openapi_checks import validator_of_type
from tests.support.servers.http_server import CREATED, MODEL, USAGE, serving

CHAT = "/v1/chat/completions"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
PYTHON = ServerTool("service_execute_python", "code_execution", "built_in", "Python code")
PLOT = ProducedFile(
    id="file_r_r0_0", name="a.txt", format="txt", mime_type="text/plain", size_bytes=2,
    created_at=CREATED, tool=PYTHON.name, round=0, turn=1, container_id="cntr_1", text="hi",
    preview="hi",
)  # fmt: skip
CALL = ToolCall("call_1", PYTHON.name, '{"code":"1+1"}')
DONE = PythonActivity(code="1+1", status="success", result="2", images=(b"png",))
RESULT = ToolResult(CALL.id, '{"status":"success","result":"2"}', PYTHON.name)
RUN = ToolRun(round=0, call=CALL, tool=PYTHON, activity=DONE, result=RESULT, files=(PLOT,))


def plotting(finish: Finish = "stop") -> Any:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted(request.model or "", CREATED, 3, session="s_1")
        yield from said(0, "I compute.")
        yield ToolCalling(0, 1, 0, CALL, PYTHON, PythonActivity(code="1+1"))
        yield ApprovalRequired(0, 1, "appr_1", "s_1", 0, PYTHON, CALL.arguments)
        yield ToolCompleted(0, 1, RUN)
        yield FileProduced(0, PLOT)
        yield from said(2, "It is 2.")
        yield TurnEnded(0, finish, USAGE)
        yield RunEnded("completed", USAGE)

    return script


def said(part: int, text: str) -> list[Any]:
    return [
        PartStarted(0, part, "text"),
        TextDelta(0, part, text),
        PartEnded(0, part, Text(text)),
    ]


async def test_answer_has_the_calls_the_files_and_the_new_session() -> None:
    async with serving(plotting()) as server:
        answer = (await server.http.post(CHAT, json={"messages": MESSAGES})).json()
    assert answer["session_id"] == "s_1"
    assert answer["agentic_tool_calls"] == [
        {
            "round": 0,
            "name": "service_execute_python",
            "arguments": '{"code":"1+1"}',
            "result_content": '{"status":"success","result":"2"}',
            "result_images_base64": ["cG5n"],
            "file_ids": ["file_r_r0_0"],
        }
    ]
    (file,) = answer["files"]
    assert (file["id"], file["text"], file["preview"]) == ("file_r_r0_0", "hi", "hi")
    assert answer["choices"][0]["message"]["content"] == "I compute.\n\nIt is 2."


async def test_stream_has_the_named_events_in_the_order_of_the_run() -> None:
    async with serving(plotting()) as server:
        body = {"messages": MESSAGES, "stream": True}
        answer = await server.http.post(CHAT, json=body)
    frames = [frame.split("\n") for frame in answer.text.split("\n\n")]
    named: dict[str, list[Any]] = {}
    order = []
    for name, *data in frames:
        if name.startswith("event: "):
            order.append(name.removeprefix("event: "))
            named.setdefault(order[-1], []).append(json.loads(data[0].removeprefix("data: ")))
    progress, approval = "agentic_tool_call_progress", "agentic_tool_approval_required"
    assert order == [progress, approval, progress, "file_produced"]
    calling, complete = named[progress]
    assert calling == {
        "type": progress,
        "round": 0,
        "tool_name": "service_execute_python",
        "phase": "calling",
        "data": {"tool_type": "code_execution", "code": "1+1"},
        "choices": [],
    }
    assert complete["phase"] == "complete"
    assert complete["data"] == {
        "tool_type": "code_execution",
        "result": "2",
        "images_base64": ["cG5n"],
        "execution_time_ms": 0,
    }
    assert named[approval] == [
        {
            "type": approval,
            "approval_id": "appr_1",
            "session_id": "s_1",
            "round": 0,
            "tool": {"source": "built_in", "kind": "code_execution", "label": "Python code"},
            "arguments": {"code": "1+1"},
            "choices": [],
        }
    ]
    validator_of_type("AgenticToolCallProgress").validate(complete)
    validator_of_type("AgenticToolApprovalRequired").validate(named[approval][0])
    file = named["file_produced"][0]
    assert file.pop("choices") == []
    validator_of_type("FileObject").validate(file)


async def test_official_client_reads_past_named_events() -> None:
    async with serving(plotting()) as server:
        stream = await server.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, stream=True
        )
        chunks = [chunk async for chunk in stream]
        async with server.openai.chat.completions.stream(model=MODEL, messages=MESSAGES) as events:
            async for _ in events:
                pass
            final = await events.get_final_completion()
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == final.choices[0].message.content == "I compute.\n\nIt is 2."
    # Users of the client loop over `choices`, which must be a list in every event.
    others = [chunk for chunk in chunks if chunk.choices == []]
    assert len(others) + sum(bool(chunk.choices) for chunk in chunks) == len(chunks)
    assert [(chunk.model_extra or {})["type"] for chunk in others[:3]] == [
        "agentic_tool_call_progress",
        "agentic_tool_approval_required",
        "agentic_tool_call_progress",
    ]
    assert others[3].id == "file_r_r0_0"


@pytest.mark.parametrize("stream", [False, True])
async def test_limit_of_rounds_is_a_length_limit(stream: bool) -> None:
    async with serving(plotting("rounds")) as server:
        body = {"messages": MESSAGES, "stream": stream}
        answer = await server.http.post(CHAT, json=body)
    assert '"finish_reason":"length"' in answer.text and "rounds" not in answer.text
