"""Messages as clients see them, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock.api.codecs.messages.encode import signature_of
from penstock.base.errors import EngineFault, InvalidRequest, Overloaded, Unavailable
from penstock.config import ServerSettings
from penstock.dialog import (
    ArgumentsDelta,
    GenerateRequest,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    TextDelta,
    ToolCall,
    TurnEnded,
    Usage,
)
from tests.support.openapi_checks import check_event
from tests.support.servers.http_server import CREATED, MODEL, USAGE, Serving, serving, spoken

MESSAGES = "/v1/messages"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
FULL_USAGE = {
    "input_tokens": 4,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 3,
    "output_tokens": 4,
    "output_tokens_details": {"thinking_tokens": 1},
}


async def events(server: Serving, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, data) of each event of a stream."""
    answer = await server.http.post(MESSAGES, json=HELLO | fields | {"stream": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert body["type"] == name.removeprefix("event: ")
        check_event("MessageStreamEvent", body)
        found.append((body["type"], body))
    return found


async def message(server: Serving, **fields: Any) -> dict[str, Any]:
    answer = await server.http.post(MESSAGES, json=HELLO | fields)
    assert answer.status_code == 200
    return dict(answer.json())


def accumulated(found: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Accumulate a stream to its message, as Anthropic's documentation describes."""
    whole: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for name, data in found:
        match name:
            case "message_start":
                whole = data["message"]
            case "content_block_start":
                assert data["index"] == len(whole["content"])
                whole["content"].append(data["content_block"])
            case "content_block_delta":
                block, delta = whole["content"][data["index"]], data["delta"]
                match delta["type"]:
                    case "text_delta":
                        block["text"] += delta["text"]
                    case "thinking_delta":
                        block["thinking"] += delta["thinking"]
                    case "signature_delta":
                        block["signature"] = delta["signature"]
                    case "input_json_delta":
                        index = data["index"]
                        inputs[index] = inputs.get(index, "") + delta["partial_json"]
            case "message_delta":
                whole |= data["delta"]
                whole["usage"] |= data["usage"]
    for index, text in inputs.items():
        whole["content"][index]["input"] = json.loads(text)
    return whole


def thinking_and_calling(request: GenerateRequest) -> Any:
    yield RunStarted(request.model or "", CREATED, USAGE.prompt_tokens)
    yield PartStarted(0, 0, "reasoning")
    yield ReasoningDelta(0, 0, "hm")
    yield ReasoningDelta(0, 0, " ...")
    yield PartEnded(0, 0, Reasoning("hm ..."))
    yield PartStarted(0, 1, "text")
    yield TextDelta(0, 1, "I look.")
    yield PartEnded(0, 1, Text("I look."))
    yield PartStarted(0, 2, "tool_call", "call_1", "weather")
    yield ArgumentsDelta(0, 2, '{"city":')
    yield ArgumentsDelta(0, 2, '"Graz"}')
    yield PartEnded(0, 2, ToolCall("call_1", "weather", '{"city":"Graz"}'))
    yield PartStarted(0, 3, "tool_call", "call_2", "time")
    yield PartEnded(0, 3, ToolCall("call_2", "time", ""))
    yield TurnEnded(0, "tool_calls", USAGE)
    yield RunEnded("completed", USAGE)


def ending(finish: Any, stop_sequence: str | None = None, text: str = "so") -> Any:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted(request.model or "", CREATED, 7)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, text)
        yield PartEnded(0, 0, Text(text))
        yield TurnEnded(0, finish, USAGE, stop_sequence)
        yield RunEnded("completed", USAGE)

    return script


async def test_message_has_the_vendors_shape() -> None:
    async with serving() as server:
        answer = await message(server)
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [{"type": "text", "text": "Hello!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": FULL_USAGE,
    }


async def test_stream_has_the_vendors_events_in_order() -> None:
    async with serving() as server:
        found = await events(server)
    assert [name for name, _ in found] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start = found[0][1]["message"]
    assert start.pop("id").startswith("msg_")
    assert start == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 0,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert found[1][1]["content_block"] == {"type": "text", "text": ""}
    assert found[2][1]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert found[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2][1]["usage"] == FULL_USAGE


@pytest.mark.parametrize(
    "script",
    [
        spoken("Grüße", " \u2028", '"quoted"\n', "\x00\t", "🎈", ""),
        spoken(),
        spoken("", ""),
        thinking_and_calling,
        ending("length"),
        ending("stop", "END"),
    ],
)
async def test_streamed_and_unstreamed_messages_are_equal(script: Any) -> None:
    async with serving(script) as server:
        whole = await message(server)
        found = await events(server)
    streamed = accumulated(found)
    assert whole.pop("id") != streamed.pop("id")
    assert streamed == whole
    opened = [data["index"] for name, data in found if name == "content_block_start"]
    closed = [data["index"] for name, data in found if name == "content_block_stop"]
    assert opened == closed == list(range(len(whole["content"])))


async def test_thinking_and_calls_are_blocks_of_their_own() -> None:
    async with serving(thinking_and_calling) as server:
        answer = await message(server)
        found = await events(server)
    signature = signature_of("hm ...")
    assert answer["content"] == [
        {"type": "thinking", "thinking": "hm ...", "signature": signature},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Graz"}},
        {"type": "tool_use", "id": "call_2", "name": "time", "input": {}},
    ]
    assert answer["stop_reason"] == "tool_use"
    deltas = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert {"type": "input_json_delta", "partial_json": '{"city":'} in deltas
    assert {"type": "signature_delta", "signature": signature} in deltas


@pytest.mark.parametrize(
    ("finish", "stop_sequence", "reason"),
    [
        ("stop", None, "end_turn"),
        ("length", None, "max_tokens"),
        ("tool_calls", None, "tool_use"),
        ("stop", "END", "stop_sequence"),
    ],
)
async def test_stop_reason_and_sequence_say_why_it_ended(
    finish: str, stop_sequence: str | None, reason: str
) -> None:
    async with serving(ending(finish, stop_sequence)) as server:
        answer = await message(server)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop_sequence)


async def test_a_call_that_broke_off_is_no_block() -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield PartStarted(0, 0, "tool_call", "c", "f")
        yield ArgumentsDelta(0, 0, '{"a": [1, ')
        yield PartEnded(0, 0, ToolCall("c", "f", '{"a": [1, ', whole=False))
        yield TurnEnded(0, "length", USAGE)
        yield RunEnded("incomplete", USAGE)

    async with serving(script) as server:
        answer = await message(server)
    assert answer["content"] == [] and answer["stop_reason"] == "max_tokens"


async def test_session_is_named_in_the_answer_where_one_goes_on() -> None:
    async with serving() as server:
        assert (await message(server, session_id="s1"))["session_id"] == "s1"
        found = await events(server, session_id="s1")
        assert "session_id" not in await message(server)
    assert [data["session_id"] for _, data in found if "session_id" in data] == ["s1"]


async def test_input_tokens_and_those_from_the_cache_make_the_prompt() -> None:
    usage = Usage(prompt_tokens=100, cached_tokens=96, completion_tokens=1)

    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 100)
        yield TurnEnded(0, "stop", usage)
        yield RunEnded("completed", usage)

    async with serving(script) as server:
        told = (await message(server))["usage"]
        started = (await events(server))[0][1]["message"]["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"]) == (4, 96)
    assert started["input_tokens"] == 100


async def test_idle_stream_gets_pings() -> None:
    gate = asyncio.Event()

    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield gate
        yield from list(ending("stop")(request))[1:]

    settings = ServerSettings(keep_alive_interval_ms=5)
    async with (
        serving(script, settings=settings) as server,
        server.http.stream("POST", MESSAGES, json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        async for line in lines:
            if line == "event: ping":
                assert await lines.__anext__() == 'data: {"type":"ping"}'
                gate.set()
                break
        rest = [line async for line in lines]
    assert 'data: {"type":"message_stop"}' in rest


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("no x", field="x"), 400, "invalid_request_error"),
        (Overloaded("full", retry_after_s=7), 429, "rate_limit_error"),
        (Unavailable("restarting"), 503, "overloaded_error"),
        (EngineFault("died"), 500, "api_error"),
        (RunFailed(404, "x", "file_not_found", "gone"), 404, "not_found_error"),
        (RunFailed(507, "x", "storage_full", "full"), 507, "api_error"),
    ],
)
async def test_errors_have_the_vendors_envelope(
    stream: bool, error: Any, status: int, kind: str
) -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield error

    async with serving(script) as server:
        headers = {"x-request-id": "req-7"}
        body = HELLO | {"stream": stream}
        answer = await server.http.post(MESSAGES, json=body, headers=headers)
    assert answer.status_code == status
    assert answer.json() == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
        "request_id": "req-7",
    }
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == "req-7"


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("POST", "/v1/messages/nowhere", 404, "not_found_error"),
        ("GET", "/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
async def test_router_errors_have_the_vendors_envelope_below_messages(
    method: str, path: str, status: int, kind: str
) -> None:
    async with serving() as server:
        answer = await server.http.request(method, path)
        other = await server.http.get("/v1/messagesx")
    assert answer.status_code == status and answer.json()["error"]["type"] == kind
    assert set(other.json()["error"]) == {"message", "type", "param", "code"}
    assert "request-id" not in other.headers


async def test_too_large_body_has_the_vendors_envelope() -> None:
    async with serving(settings=ServerSettings(body_limit_bytes=1024)) as server:
        answer = await server.http.post(MESSAGES, content=b" " * 2000)
    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "request_too_large"


async def test_error_in_an_open_stream_is_an_event_and_the_end() -> None:
    def script(request: GenerateRequest) -> Any:
        yield from list(spoken("He")(request))[:3]
        yield EngineFault("the engine stopped")

    async with serving(script) as server:
        found = await events(server)
    name, data = found[-1]
    assert name == "error"
    assert data["error"] == {"type": "api_error", "message": "the engine stopped"}
    assert data["request_id"].startswith("req_")


@pytest.mark.parametrize("version", ["anthropic-version", "compat-version"])
@pytest.mark.parametrize("beta", ["anthropic-beta", "compat-beta"])
async def test_headers_of_the_vendor_are_accepted_under_both_spellings(
    version: str, beta: str
) -> None:
    headers = {version: "2023-06-01", beta: "tools-2024-04-04", "x-api-key": "any"}
    async with serving() as server:
        answer = await server.http.post(MESSAGES, json=HELLO, headers=headers)
        asked = {
            "origin": "https://page.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": f"{version},{beta},x-api-key",
        }
        preflight = await server.http.options(MESSAGES, headers=asked)
    assert answer.status_code == preflight.status_code == 200


async def test_tokens_are_counted_without_generating() -> None:
    async with serving() as server:
        answer = await server.http.post(f"{MESSAGES}/count_tokens", json=HELLO)
        bad = await server.http.post(f"{MESSAGES}/count_tokens", json={})
        assert server.loop.running == 0
    assert answer.json() == {"input_tokens": USAGE.prompt_tokens}
    assert bad.status_code == 400 and bad.json()["error"]["type"] == "invalid_request_error"
