"""Runs with server tools on the Responses API: items, events, files, the stored chain."""

from __future__ import annotations

import base64
import json
import warnings
from typing import Any

import openai
import pytest

from penstock.dialog import (
    CustomActivity,
    FileProduced,
    GenerateRequest,
    Message,
    PartEnded,
    PartStarted,
    PythonActivity,
    RunEnded,
    RunStarted,
    SearchActivity,
    ShellActivity,
    Text,
    ToolCall,
    ToolResult,
    ToolRun,
    TurnEnded,
)
from penstock.dialog.fold import fold
from penstock.dialog.transcript import answer_messages
from tests.support.server_tool_runs import (
    HITS,
    MCP,
    PNG,
    PYTHON,
    SEARCH,
    SHELL,
    SOURCE,
    call_events,
    every_tool,
    missing,
    produced,
    text_events,
)
from tests.support.servers.http_server import CREATED, USAGE, Script, spoken
from tests.support.servers.responses_server import FUNCTION, a_store, answering, create, get, stream

KINDS = [
    "message",
    "code_interpreter_call",
    "shell_call",
    "shell_call_output",
    "web_search_call",
    "web_search_call",
    "mcp_call",
    "message",
    "shell_call",
    "shell_call_output",
    "message",
    "message",
]


def playing(*events: Any, finish: str = "stop", status: str = "completed") -> Script:
    """Return a script of these events; a callable is called with the container."""

    def script(request: GenerateRequest) -> Any:
        yield RunStarted(request.model or "", CREATED, 3)
        for event in events:
            yield from event(request.container) if callable(event) else event
        yield TurnEnded(0, finish, USAGE)  # type: ignore[arg-type]
        yield RunEnded(status, USAGE)  # type: ignore[arg-type]

    return script


def completed(output: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(item for item in output if item["type"] == kind)


def without_ids(value: Any, id: str) -> Any:
    """Return the JSON with a response's own hex id replaced."""
    return json.loads(json.dumps(value).replace(id.removeprefix("resp_"), "ID"))


async def test_each_call_is_an_item_at_its_place() -> None:
    async with answering(every_tool) as server:
        body = await create(server)
    assert [item["type"] for item in body["output"]] == KINDS
    assert {item["status"] for item in body["output"]} == {"completed"}
    assert "files" not in body and body["output_text"] == (
        "I look.See [a](sandbox:/mnt/data/a.txt).Done."
    )
    container = "cntr_" + body["id"].removeprefix("resp_")
    call = completed(body["output"], "code_interpreter_call")
    image = "data:image/png;base64," + base64.b64encode(PNG).decode()
    assert call["id"].startswith("ci_") and call["container_id"] == container
    assert call["code"] == SOURCE
    assert call["outputs"] == [
        {"type": "logs", "logs": "hi\n4"},
        {"type": "image", "url": image},
    ]
    search, page = (item for item in body["output"] if item["type"] == "web_search_call")
    assert search["action"] == {
        "type": "search",
        "query": "rivers",
        "queries": ["rivers"],
        "sources": [{"type": "url", "url": hit.url} for hit in HITS],
    }
    assert page["action"] == {"type": "open_page", "url": "https://a.example/1"}
    mcp = completed(body["output"], "mcp_call")
    assert (mcp["server_label"], mcp["name"], mcp["arguments"]) == (
        "time", "time_now", '{"zone":"UTC"}',
    )  # fmt: skip
    assert mcp["output"].startswith("result of") and mcp["error"] is None


async def test_shell_calls_have_an_output_item_in_both_forms() -> None:
    async with answering(every_tool) as server:
        output = (await create(server))["output"]
    call, told = completed(output, "shell_call"), completed(output, "shell_call_output")
    assert call["id"].startswith("sc_") and told["id"].startswith("sco_")
    assert call["call_id"] == told["call_id"] == "call_0_2"
    assert call["action"] == {
        "commands": ["ls", "false"], "max_output_length": None, "timeout_ms": 500,
    }  # fmt: skip
    stdout, stderr, outcome = told["output"]
    assert (stdout["type"], stdout["text"]) == ("stdout", "a\n")
    assert (stderr["type"], stderr["text"]) == ("stderr", "no\n")
    assert (outcome["type"], outcome["status"], outcome["exit_code"]) == ("outcome", "error", 1)
    assert "".join(entry["stdout"] for entry in told["output"]) == "a\n"
    assert "".join(entry["stderr"] for entry in told["output"]) == "no\n"
    assert all(e["outcome"] == {"type": "exit", "exit_code": 1} for e in told["output"])
    (timed_out,) = output[9]["output"]
    assert timed_out["outcome"] == {"type": "timeout"}
    assert timed_out["timed_out"] is True and "exit_code" not in timed_out


async def test_the_stream_has_openais_events_in_their_order() -> None:
    async with answering(every_tool) as server:
        events = await stream(server)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    names: list[list[str]] = [
        [e["type"].removeprefix("response.") for e in events if e.get("output_index") == index]
        for index in range(len(output))
    ]
    assert names[1] == [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ]
    command = [f"shell_call_command.{step}" for step in ("added", "delta", "done")]
    assert names[2] == ["output_item.added", *command, *command, "output_item.done"]
    assert names[3] == [
        "output_item.added",
        "shell_call_output_content.delta",
        "shell_call_output_content.delta",
        "shell_call_output_content.done",
        "output_item.done",
    ]
    assert names[4] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    assert names[6] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]
    ids = {
        event["item_id"]
        for event in events
        if event.get("output_index") == 1 and "item_id" in event
    }
    assert ids == {output[1]["id"]}
    for event in events:
        if event["type"] == "response.output_item.done":
            assert event["item"] == output[event["output_index"]]
        if event["type"] == "response.output_item.added":
            assert event["item"]["status"] == "in_progress"


async def test_named_events_report_progress_approvals_and_files() -> None:
    async with answering(every_tool) as server:
        events = await stream(server)
    progress = [e for e in events if e["type"] == "agentic_tool_call_progress"]
    tools = ["code_execution", "web_search", "web_search", "custom", "custom"]
    assert [e["data"]["tool_type"] for e in progress] == [tool for tool in tools for _ in (1, 2)]
    assert [e["phase"] for e in progress] == ["calling", "complete"] * 5
    (approval,) = (e for e in events if e["type"] == "agentic_tool_approval_required")
    assert (approval["approval_id"], approval["session_id"]) == ("appr_1", "sess_1")
    assert approval["tool"] == {"source": "built_in", "kind": "shell", "label": "Shell command"}
    files = [e for e in events if e["type"] == "file_produced"]
    assert [(file["name"], file.get("code")) for file in files] == [
        ("a.txt", None),
        ("b.csv", "not_produced"),
    ]


async def test_texts_cite_the_files_made_before_them() -> None:
    async with answering(every_tool) as server:
        events = await stream(server)
    output = events[-1]["response"]["output"]
    first, middle, done, last = (item for item in output if item["type"] == "message")
    assert first["content"][0]["annotations"] == done["content"][0]["annotations"] == []
    (content,) = middle["content"]
    (citation,) = content["annotations"]
    start, end = citation["start_index"], citation["end_index"]
    assert content["text"][start:end] == "sandbox:/mnt/data/a.txt"
    assert citation["container_id"] == "cntr_" + output[0]["id"][4:36]
    assert (citation["file_id"], citation["filename"]) == ("file_run_r0_0", "a.txt")
    (closing,) = last["content"]
    assert closing["text"] == ""
    (left,) = closing["annotations"]
    assert (left["filename"], left["start_index"], left["end_index"]) == ("b.csv", 0, 0)
    for item in (middle, last):
        mine = [event for event in events if event.get("item_id") == item["id"]]
        names = [event["type"].removeprefix("response.") for event in mine]
        assert names[-3:] == [
            "output_text.annotation.added",
            "output_text.done",
            "content_part.done",
        ]
        assert mine[-3]["annotation"] == item["content"][0]["annotations"][0]
        assert (mine[-3]["annotation_index"], mine[-3]["content_index"]) == (0, 0)


@pytest.mark.parametrize(
    ("text", "name", "mention"),
    [
        ("a.txt, [a](sandbox:/mnt/data/a.txt)", "a.txt", "sandbox:/mnt/data/a.txt"),
        ("a.txt is at /mnt/data/a.txt.", "a.txt", "/mnt/data/a.txt"),
        ("Look at a.txt.", "a.txt", "a.txt"),
        ("Look at (é) a.txt", "a.txt", "a.txt"),
        ("in plots/b.png", "plots/b.png", "plots/b.png"),
        ("in my-a.txt, a.txt.gz, a.txts, dir/a.txt and /mnt/data/a.txt.gz", "a.txt", ""),
        ("nothing", "a.txt", ""),
        ("", "a.txt", ""),
    ],
)
async def test_citation_spans_the_mention(text: str, name: str, mention: str) -> None:
    script = playing(
        lambda container: call_events(
            0, 0, PYTHON, PythonActivity(code="1"), PythonActivity(code="1", status="success"),
            (produced(name, container),),
        ),
        text_events(1, text),
    )  # fmt: skip
    async with answering(script) as server:
        body = await create(server)
    (citation,) = body["output"][1]["content"][0]["annotations"]
    assert text[citation["start_index"] : citation["end_index"]] == mention
    assert mention or citation["start_index"] == citation["end_index"] == 0


async def test_streamed_unstreamed_and_stored_answers_are_equal() -> None:
    async with answering(every_tool) as server:
        whole = await create(server)
        streamed = (await stream(server))[-1]["response"]
        assert await get(server, whole["id"]) == whole
        assert await get(server, streamed["id"]) == streamed
        background = await stream(server, background=True)
        last = background[-1]["response"]
        url = f"/v1/responses/{last['id']}?stream=true"
        replayed = (await server.http.get(url)).text
    outputs = [without_ids(body["output"], body["id"]) for body in (whole, streamed, last)]
    assert outputs[0] == outputs[1] == outputs[2]
    frames = [line for line in replayed.splitlines() if line.startswith("data: {")]
    assert [json.loads(line.removeprefix("data: ")) for line in frames] == background


@pytest.mark.parametrize(
    ("tool", "asked", "done", "status"),
    [
        (PYTHON, PythonActivity(code="1/0"), PythonActivity(code="1/0", status="error",
            exception="ZeroDivisionError"), "completed"),
        (PYTHON, PythonActivity(code="x"), PythonActivity(code="x", status="timeout"), "failed"),
        (PYTHON, PythonActivity(code="x"), PythonActivity(code="x", status="denied",
            exception="no"), "failed"),
        (SEARCH, SearchActivity(query="x"), SearchActivity(query="x", status="error"), "failed"),
        (MCP, CustomActivity(arguments="{}"), CustomActivity(arguments="{}", status="error",
            content="down"), "failed"),
    ],
)  # fmt: skip
async def test_items_of_calls_that_fail(tool: Any, asked: Any, done: Any, status: str) -> None:
    async with answering(playing(call_events(0, 0, tool, asked, done, result="down"))) as server:
        events = await stream(server)
    (item,) = events[-1]["response"]["output"]
    assert item["status"] == status
    names = {event["type"] for event in events}
    done_event = f"response.{item['type']}.completed"
    assert (done_event in names) == (status == "completed")
    assert ("response.mcp_call.failed" in names) == (tool is MCP)
    if tool is MCP:
        text = {"type": "text", "text": "down"}
        error = {"type": "mcp_tool_execution_error", "content": [text]}
        assert (item["output"], item["error"]) == (None, error)
    if isinstance(done, PythonActivity) and done.exception:
        assert item["outputs"] == [{"type": "logs", "logs": done.exception}]


async def test_denied_shell_call_says_why() -> None:
    denied = ShellActivity(commands=("rm x",), status="denied")
    result = '{"status":"denied","exception":"not today"}'
    events = call_events(0, 0, SHELL, ShellActivity(commands=("rm x",)), denied, result=result)
    async with answering(playing(events)) as server:
        _, output = (await create(server))["output"]
    assert "".join(entry["stderr"] for entry in output["output"]) == "not today"
    assert output["output"][-1]["status"] == "denied"
    assert output["output"][-1]["outcome"] == {"type": "exit", "exit_code": -1}


async def test_limit_of_rounds_ends_incomplete() -> None:
    done = PythonActivity(code="1", status="success")
    events = call_events(0, 0, PYTHON, PythonActivity(code="1"), done)
    script = playing(events, finish="rounds", status="incomplete")
    async with answering(script) as server:
        last = (await stream(server, max_tool_rounds=1))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_tool_rounds"}
    assert server.loop.requests[0].limits.max_rounds == 1


async def test_call_that_was_cut_off_is_incomplete_and_not_in_the_chain() -> None:
    started, *_ = call_events(
        1, 0, PYTHON, PythonActivity(code="1"), PythonActivity(code="1", status="success")
    )
    script = playing(text_events(0, "I look."), [started], status="cancelled")
    async with answering(script) as server:
        body = await create(server)
        await create(server, previous_response_id=body["id"])
    assert [item["status"] for item in body["output"]] == ["completed", "incomplete"]
    messages = server.loop.requests[1].messages
    assert messages is not None
    assert [m.parts[0] for m in messages] == [Text("hi"), Text("I look."), Text("hi")]


def test_run_of_every_tool_folds_as_it_is_stored() -> None:
    request = GenerateRequest(container="cntr_1")
    (choice,) = fold(every_tool(request)).choices
    assert len(choice.tool_runs) == 7 and len(choice.files) == 2


async def test_chain_carries_calls_results_and_the_container() -> None:
    async with a_store() as store:
        async with answering(every_tool, store=store) as server:
            first = await create(server)
        async with answering(every_tool, store=store) as other:
            second = await create(other, previous_response_id=first["id"])
            await other.http.delete(f"/v1/responses/{first['id']}")
            await create(other, previous_response_id=second["id"], store=False)
    container = "cntr_" + first["id"].removeprefix("resp_")
    requests = [*server.loop.requests, *other.loop.requests]
    assert [request.container for request in requests] == [container] * 3
    (choice,) = fold(every_tool(requests[0])).choices
    answer = answer_messages(choice.parts)
    hi = Message("user", (Text("hi"),))
    assert requests[1].messages == (hi, *answer, hi)
    assert requests[2].messages == (hi, *answer, hi, *answer, hi)
    results = [m.parts[0] for m in answer if m.role == "tool"]
    assert [r.call_id for r in results if isinstance(r, ToolResult)] == [
        part.call.id for part in choice.parts if isinstance(part, ToolRun)
    ]


async def test_unrelated_responses_have_containers_of_their_own() -> None:
    async with answering(every_tool) as server:
        for _ in range(2):
            await create(server, store=False)
    first, second = (request.container for request in server.loop.requests)
    assert first != second and first is not None and first.startswith("cntr_")


async def test_client_calls_share_the_message_of_the_round() -> None:
    done = PythonActivity(code="1", status="success")
    own = ToolCall("call_own", "weather", "{}")
    script = playing(
        [PartStarted(0, 0, "tool_call", own.id, own.name), PartEnded(0, 0, own)],
        call_events(1, 0, PYTHON, PythonActivity(code="1"), done),
        finish="tool_calls",
    )
    result = {"type": "function_call_output", "call_id": own.id, "output": "rain"}
    async with answering(script) as server:
        first = await create(server, tools=[FUNCTION])
        await create(server, input=[result], previous_response_id=first["id"], tools=[FUNCTION])
    assert {item["type"] for item in first["output"]} == {"function_call", "code_interpreter_call"}
    messages = server.loop.requests[1].messages
    assert messages is not None
    assert [part.name for part in messages[1].parts if isinstance(part, ToolCall)] == [
        "weather",
        PYTHON.name,
    ]
    results = [part for m in messages[2:] for part in m.parts if isinstance(part, ToolResult)]
    assert [(result.call_id, result.name) for result in results] == [
        ("call_0_1", PYTHON.name),
        ("call_own", "weather"),
    ]


async def test_input_items_list_calls_of_earlier_turns_and_not_the_answer() -> None:
    async with answering(every_tool) as server:
        first = await create(server)
        second = await create(server, previous_response_id=first["id"])
        client = server.openai.responses
        of_first = [item async for item in client.input_items.list(first["id"], order="asc")]
        of_second = [item async for item in client.input_items.list(second["id"], order="asc")]
    assert [item.type for item in of_first] == ["message"]
    kinds = [item.type for item in of_second]
    assert kinds.count("function_call") == kinds.count("function_call_output") == 7
    assert (kinds[0], kinds[-1], kinds.count("message")) == ("message", "message", 5)


# The specification's `reasoning` is a text, which the client warns about when it copies it.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_official_client_reads_answers_and_streams() -> None:
    async with answering(every_tool) as server:
        client = server.openai.responses
        answer = await client.create(model="default", input="hi", tools=[])
        async with client.stream(model="default", input="hi") as events:
            seen = [event.type async for event in events]
            final = await events.get_final_response()
    assert [item.type for item in answer.output] == [item.type for item in final.output] == KINDS
    for item in (*answer.output, *final.output):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            type(item).model_validate(item.model_dump(mode="json", by_alias=True))
    output = final.output[3]
    assert output.type == "shell_call_output"
    assert "".join(entry.stdout for entry in output.output) == "a\n"
    assert {"agentic_tool_call_progress", "file_produced"} <= set(seen)


async def test_official_client_can_send_the_output_back() -> None:
    async with answering(every_tool) as server:
        client = server.openai.responses
        first = await client.create(model="default", input="hi", store=False)
        items: Any = [{"role": "user", "content": "hi"}, *first.output]
        await client.create(model="default", input=items, store=False)
        dumped: Any = [items[0], *(item.model_dump(mode="json") for item in first.output)]
        await client.create(model="default", input=dumped, store=False)
    by_items, dumped_items = (request.messages for request in server.loop.requests[1:])
    assert by_items == dumped_items and by_items is not None
    calls = [part for m in by_items for part in m.parts if isinstance(part, ToolCall)]
    names = [PYTHON.name, SHELL.name, SEARCH.name, "service_website_content_extractor", MCP.name]
    assert [call.name for call in calls] == [*names, SHELL.name]
    results = [part for m in by_items for part in m.parts if isinstance(part, ToolResult)]
    assert [result.call_id for result in results] == [call.id for call in calls]
    python, shell, search, _, mcp, _ = (result.text for result in results)
    assert json.loads(python) == {"status": "success", "stdout": "hi\n4", "images_generated": 1}
    assert json.loads(shell) == {
        "status": "error", "stdout": "a\n", "stderr": "no\n", "exit_code": 1, "timed_out": False,
    }  # fmt: skip
    assert json.loads(search) == {"sources": [hit.url for hit in HITS]}
    assert mcp.startswith("result of")
    assert json.loads(calls[1].arguments) == {"commands": ["ls", "false"], "timeout_ms": 500}


async def test_references_stand_for_stored_calls() -> None:
    async with answering(every_tool) as server:
        first = await create(server)
        items = [{"type": "item_reference", "id": item["id"]} for item in first["output"][1:4]]
        await create(server, input=[*items, {"role": "user", "content": "and?"}])
    messages = server.loop.requests[1].messages
    assert messages is not None
    assert [m.role for m in messages] == ["assistant", "tool", "assistant", "tool", "user"]


async def test_values_of_openais_include_are_accepted() -> None:
    values = [
        "code_interpreter_call.outputs",
        "web_search_call.action.sources",
        "web_search_call.results",
    ]
    async with answering(spoken("hi")) as server:
        body = await create(server, include=values)
        found = await server.openai.responses.retrieve(body["id"], include=values)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError):
            await server.openai.responses.retrieve(body["id"], include=["x"])  # type: ignore[list-item]
    assert found.status == "completed"


async def test_placeholder_of_a_missing_file_is_cited_after_the_text() -> None:
    script = playing(
        text_events(0, "No file."),
        lambda container: [FileProduced(0, missing("b.csv", container))],
    )
    async with answering(script) as server:
        body = await create(server, files=[{"name": "b.csv"}])
    text, closing = body["output"]
    assert text["content"][0]["annotations"] == []
    assert closing["content"][0]["annotations"][0]["filename"] == "b.csv"
    assert body["output_text"] == "No file."
