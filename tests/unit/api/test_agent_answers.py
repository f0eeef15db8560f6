"""Answers with server tools on chat and messages: a stream adds up to the whole answer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson
from hypothesis import given

from penstock.api.codecs import chat, messages
from penstock.api.codecs.agent_events import AgentEvent, agent_event, file_object, json_value
from penstock.api.codecs.dialect import AnswerIdentity
from penstock.dialog import (
    ArgumentsDelta,
    CustomActivity,
    Event,
    FileProduced,
    GenerateRequest,
    Message,
    PartEnded,
    PartStarted,
    ProducedFile,
    RunEnded,
    RunStarted,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    Text,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
    Usage,
)
from penstock.dialog.fold import fold
from tests.support.agent_event_strategies import agent_event_streams

IDENTITY = AnswerIdentity("id_1")
REQUEST = GenerateRequest(messages=(Message("user", (Text("hi"),)),))
AGENT_EVENTS = ("agentic_tool_call_progress", "agentic_tool_approval_required", "file_produced")
SEARCH = ServerTool("service_search_the_web", "web_search", "built_in", "Web search")
SHELL = ServerTool("service_shell", "shell", "built_in", "Shell command")
MCP = ServerTool("wiki_find", "external", "mcp", "find", "wiki")


def parsed(frames: bytes) -> list[tuple[str, Any]]:
    """Return (name of the event, data) of each frame; the name of an unnamed event is ""."""
    found = []
    for frame in frames.decode().split("\n\n")[:-1]:
        *name, data = frame.split("\n")
        text = data.removeprefix("data: ")
        value = text if text == "[DONE]" else json.loads(text)
        found.append((name[0].removeprefix("event: ") if name else "", value))
    return found


def chat_stream(run: list[Event]) -> list[tuple[str, Any]]:
    encoder = chat.ChatDialect().encoder(IDENTITY, REQUEST)
    return parsed(b"".join(map(encoder.encode, run)))


def message_stream(run: list[Event]) -> list[tuple[str, Any]]:
    encoder = messages.MessageStream(IDENTITY, REQUEST)
    return parsed(b"".join(map(encoder.encode, run)))


def whole_chat(run: list[Event]) -> Any:
    return json.loads(chat.encode(IDENTITY, REQUEST, fold(run)))


def whole_message(run: list[Event]) -> Any:
    return json.loads(messages.encode(IDENTITY, REQUEST, fold(run)))


def assembled(frames: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return the content blocks of a stream, and check their order."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    is_open = False
    for name, data in frames:
        if name == "content_block_start":
            assert data["index"] == len(blocks) and not is_open
            blocks.append(data["content_block"])
            is_open = True
        elif name == "content_block_delta":
            assert is_open and data["index"] == len(blocks) - 1
            delta = {k: v for k, v in data["delta"].items() if k != "type"}
            if "partial_json" in delta:
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
                continue
            for key, value in delta.items():
                blocks[-1][key] += value
        elif name == "content_block_stop":
            assert is_open and data["index"] == len(blocks) - 1
            is_open = False
    assert not is_open
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    return blocks


def agent_events(frames: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [frame for frame in frames if frame[0] in AGENT_EVENTS]


def expected_events(run: list[Event]) -> list[tuple[str, Any]]:
    return [
        (name, plain(data))
        for name, data in (agent_event(event) for event in run if isinstance(event, AgentEvent))
    ]


def plain(value: Any) -> Any:
    """Return the data of an event as a client parses it."""
    return json.loads(orjson.dumps(value))


@given(agent_event_streams())
def test_a_chat_stream_adds_up_to_the_whole_answer(run: list[Event]) -> None:
    frames, whole = chat_stream(run), whole_chat(run)
    chunks = [data for name, data in frames if not name and data != "[DONE]"]
    for choice in whole["choices"]:
        deltas = [
            entry["delta"]
            for chunk in chunks
            for entry in chunk["choices"]
            if entry["index"] == choice["index"]
        ]
        text = "".join(delta.get("content") or "" for delta in deltas)
        assert text == (choice["message"]["content"] or "")
        started = [
            call["index"] for d in deltas for call in d.get("tool_calls", ()) if "id" in call
        ]
        assert started == list(range(len(started)))
    expected = [(name, {**data, "choices": []}) for name, data in expected_events(run)]
    assert agent_events(frames) == expected
    assert chunks[-1].get("session_id") == whole.get("session_id")


@given(agent_event_streams())
def test_a_chat_answer_records_the_calls_and_files_of_the_run(run: list[Event]) -> None:
    whole = whole_chat(run)
    runs = [event.run for event in run if isinstance(event, ToolCompleted)]
    records = whole.get("agentic_tool_calls", [])
    found = sorted((r["round"], r["name"], r["arguments"], r["result_content"]) for r in records)
    assert found == sorted((r.round, r.tool.name, r.call.arguments, r.result.text) for r in runs)
    produced = [event.file.id for event in run if isinstance(event, FileProduced)]
    assert sorted(file["id"] for file in whole.get("files", [])) == sorted(produced)


def without_arguments(run: list[Event]) -> list[Event]:
    """Return the run with calls of the client's functions that have no arguments: those of the
    strategy are not JSON, which no generator would call a whole call."""
    changed: list[Event] = []
    for event in run:
        if isinstance(event, ArgumentsDelta):
            continue
        if isinstance(event, PartEnded) and isinstance(event.value, ToolCall):
            call = msgspec.structs.replace(event.value, arguments="")
            event = msgspec.structs.replace(event, value=call)
        changed.append(event)
    return changed


@given(agent_event_streams().map(without_arguments))
def test_a_message_stream_adds_up_to_the_whole_message(run: list[Event]) -> None:
    frames, whole = message_stream(run), whole_message(run)
    assert assembled(frames) == whole["content"]
    assert agent_events(frames) == expected_events(run)
    end = next(data for name, data in frames if name == "message_delta")
    assert end["usage"] == whole["usage"]
    assert end["delta"]["stop_reason"] == whole["stop_reason"]
    start = frames[0][1]["message"]
    assert start.get("session_id") == whole.get("session_id") == end.get("session_id")


def ran(part: int, tool: ServerTool, activity: Any, text: str = "{}", **call: Any) -> ToolRun:
    made = ToolCall(f"call_{part}", tool.name, call.get("arguments", "{}"))
    result = ToolResult(made.id, text, tool.name)
    return ToolRun(round=0, call=made, tool=tool, activity=activity, result=result)


def calling(part: int, run: ToolRun) -> ToolCalling:
    return ToolCalling(0, part, run.round, run.call, run.tool, run.activity)


def text(part: int, words: str) -> list[Event]:
    return [
        PartStarted(0, part, "text"),
        TextDelta(0, part, words),
        PartEnded(0, part, Text(words)),
    ]


def whole_run(*events: Event) -> list[Event]:
    last: list[Event] = [TurnEnded(0, "rounds", Usage()), RunEnded("incomplete", Usage())]
    return [RunStarted("m", 7, 3, session="s_new"), *events, *last]


def content_of(*texts: str) -> list[str]:
    """Return the content of an answer, streamed and whole, with a call before each further text."""
    events: list[Event] = []
    for index, words in enumerate(texts):
        if index:
            run = ran(2 * index - 1, MCP, CustomActivity(arguments="{}", status="success"))
            events += [calling(2 * index - 1, run), ToolCompleted(0, 2 * index - 1, run)]
        events += text(2 * index, words)
    run_of = whole_run(*events)
    chunks = [data for name, data in chat_stream(run_of) if not name and data != "[DONE]"]
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    return ["".join(deltas), whole_chat(run_of)["choices"][0]["message"]["content"]]


def test_chat_separates_the_texts_of_rounds() -> None:
    assert content_of("a", "b") == ["a\n\nb"] * 2
    assert content_of("a\n", "b") == ["a\nb"] * 2
    assert content_of("", "b") == ["b"] * 2
    assert content_of("a", "", "c") == ["a\n\nc"] * 2
    assert content_of("a", "b", "c") == ["a\n\nb\n\nc"] * 2


def test_the_limit_of_rounds_and_the_new_session_are_shown() -> None:
    run = whole_run(*text(0, "a"))
    answer, message = whole_chat(run), whole_message(run)
    assert answer["choices"][0]["finish_reason"] == "length" and answer["session_id"] == "s_new"
    assert message["stop_reason"] == "pause_turn" and message["session_id"] == "s_new"


def test_calls_side_by_side_are_blocks_in_order() -> None:
    hits = (SearchHit(title="A", url="https://a.example/x", content="passage"),)
    first = ran(0, SEARCH, SearchActivity(query="q", status="success", hits=hits))
    second = ran(1, MCP, CustomActivity(arguments="{}", status="success"), "found")
    run = whole_run(
        calling(0, first),
        calling(1, second),
        ToolCompleted(0, 1, second),
        ToolCompleted(0, 0, first),
        *text(2, "done"),
    )
    kinds = ["server_tool_use", "web_search_tool_result", "mcp_tool_use", "mcp_tool_result", "text"]
    assert [block["type"] for block in assembled(message_stream(run))] == kinds
    assert [block["type"] for block in whole_message(run)["content"]] == kinds
    usage = whole_message(run)["usage"]["server_tool_use"]
    assert usage == {"web_search_requests": 1, "web_fetch_requests": 0}


def test_a_shell_without_an_exit_status_is_an_error() -> None:
    def code(**results: Any) -> Any:
        activity = ShellActivity(commands=("x",), **results)
        block = whole_message(
            whole_run(calling(0, r := ran(0, SHELL, activity)), ToolCompleted(0, 0, r))
        )
        content = block["content"][1]["content"]
        assert content["type"] == "bash_code_execution_tool_result_error"
        return content["error_code"]

    assert code(status="timeout", timed_out=True) == "execution_time_exceeded"
    assert code(status="denied") == "unavailable"


def test_arguments_are_shown_as_the_model_wrote_them() -> None:
    assert orjson.dumps({"a": json_value('{"x":\r\n 1.50, "x": 2}')}) == (
        b'{"a":{"x":   1.50, "x": 2}}'
    )
    assert json_value("not JSON") == "not JSON" and json_value(" ") == {}


def test_a_file_object_has_only_the_fields_that_are_known() -> None:
    file = ProducedFile(
        id="file_r_r0_0", name="a.bin", format="bin", mime_type="application/octet-stream",
        size_bytes=2, created_at=7, tool="t", round=0, turn=1, container_id="cntr_1", data=b"\0\1",
    )  # fmt: skip
    assert file_object(file) == {
        "id": "file_r_r0_0", "name": "a.bin", "format": "bin",
        "mime_type": "application/octet-stream", "bytes": 2, "created_at": 7,
        "purpose": "agent_output", "source": {"tool": "t", "round": 0, "turn": 1},
        "data_base64": "AAE=",
    }  # fmt: skip
