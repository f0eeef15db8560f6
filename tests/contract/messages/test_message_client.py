"""Anthropic's official client against a running server: helpers, tool loop, counting, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from penstock.api.codecs.messages.encode import signature_of
from penstock.base.errors import EngineFault, InvalidRequest, NotFound, Overloaded, Unavailable
from penstock.dialog import (
    ArgumentsDelta,
    Constraint,
    GenerateRequest,
    Image,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    Text,
    ToolCall,
    ToolResult,
    TurnEnded,
)
from tests.support.servers.http_server import CREATED, MODEL, USAGE, Serving, serving, spoken

HELLO: Any = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
GREETING = spoken("Hel", "lo", "!")
WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@asynccontextmanager
async def client_of(
    script: Any = GREETING, **headers: str
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Serving]]:
    async with (
        serving(script) as server,
        anthropic.AsyncAnthropic(
            base_url=server.url, api_key="any", max_retries=0, default_headers=headers
        ) as client,
    ):
        yield client, server


def calling(request: GenerateRequest) -> Any:
    """Think and call a function; once it has a result, answer."""
    last = (request.messages or ())[-1].parts[-1]
    if isinstance(last, ToolResult):
        yield from spoken("It is ", last.text)(request)
        return
    arguments = '{"city":"Graz"}'
    yield RunStarted(request.model or "", CREATED, USAGE.prompt_tokens)
    yield PartStarted(0, 0, "reasoning")
    yield ReasoningDelta(0, 0, "I must look.")
    yield PartEnded(0, 0, Reasoning("I must look."))
    yield PartStarted(0, 1, "tool_call", "call_1", "weather")
    for piece in ('{"ci', 'ty":"Gr', 'az"}'):
        yield ArgumentsDelta(0, 1, piece)
    yield PartEnded(0, 1, ToolCall("call_1", "weather", arguments))
    yield TurnEnded(0, "tool_calls", USAGE)
    yield RunEnded("completed", USAGE)


async def test_client_reads_a_message() -> None:
    async with client_of() as (client, _):
        message = await client.messages.create(system="be brief", **HELLO)
    (block,) = message.content
    assert block.type == "text" and block.text == "Hello!"
    assert (message.role, message.stop_reason, message.model) == ("assistant", "end_turn", MODEL)
    usage = message.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == USAGE.prompt_tokens
    assert message._request_id is not None and message._request_id.startswith("req_")


async def test_client_streams_text_and_makes_the_final_message() -> None:
    async with client_of() as (client, _):
        whole = await client.messages.create(**HELLO)
        async with client.messages.stream(**HELLO) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
            text = await stream.get_final_text()
    assert pieces == ["Hel", "lo", "!"] and text == "Hello!"
    same = {"id", "parsed_output"}
    assert final.model_dump(exclude={"id": True, "content": {"__all__": same}}) == whole.model_dump(
        exclude={"id": True, "content": {"__all__": same}}
    )


async def test_client_reads_raw_events() -> None:
    async with client_of() as (client, _):
        stream = await client.messages.create(stream=True, **HELLO)
        kinds = [event.type async for event in stream]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]


async def test_client_goes_through_a_tool_loop() -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    async with client_of(calling) as (client, server):
        first = await client.messages.create(
            model=MODEL, max_tokens=64, messages=messages, tools=[WEATHER]
        )
        call = first.content[-1]
        assert first.stop_reason == "tool_use" and call.type == "tool_use"
        assert call.input == {"city": "Graz"}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "31 °C"}
        messages += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        second = await client.messages.create(
            model=MODEL, max_tokens=64, messages=messages, tools=[WEATHER]
        )
    assert second.content[0].type == "text" and second.content[0].text == "It is 31 °C"
    sent = server.loop.requests[1].messages
    assert sent is not None
    assert sent[1].parts == (
        Reasoning("I must look."),
        ToolCall("call_1", "weather", '{"city":"Graz"}'),
    )
    assert sent[2].parts == (ToolResult("call_1", "31 °C", "weather"),)


async def test_client_accumulates_thinking_and_arguments_of_a_stream() -> None:
    async with (
        client_of(calling) as (client, _),
        client.messages.stream(tools=[WEATHER], **HELLO) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_message()
    thinking, call = final.content
    assert thinking.type == "thinking" and thinking.thinking == "I must look."
    assert thinking.signature == signature_of("I must look.")
    assert call.type == "tool_use" and call.input == {"city": "Graz"}
    kinds = {event.type for event in events}
    assert {"thinking", "signature", "input_json"} <= kinds


async def test_client_parses_an_answer_of_a_schema() -> None:
    class River(BaseModel):
        name: str

    async with client_of(spoken('{"name": "Mur"}')) as (client, server):
        parsed = await client.messages.parse(output_format=River, **HELLO)
    assert parsed.parsed_output == River(name="Mur")
    constraint = server.loop.requests[0].constraint
    assert isinstance(constraint, Constraint) and constraint.kind == "json_schema"
    assert json.loads(constraint.value)["properties"]["name"]["type"] == "string"


async def test_client_counts_tokens() -> None:
    async with client_of() as (client, server):
        counted = await client.messages.count_tokens(
            model=MODEL, messages=HELLO["messages"], system="be brief", tools=[WEATHER]
        )
    assert counted.input_tokens == USAGE.prompt_tokens
    (request,) = server.loop.requests
    assert request.tools[0].name == "weather" and request.messages is not None
    assert request.messages[0].parts == (Text("be brief"),)


async def test_client_sends_images_and_documents() -> None:
    async with client_of() as (client, server):
        await client.messages.create(
            model=MODEL,
            max_tokens=5,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": "aGk=",
                            },
                        },
                        {
                            "type": "document",
                            "title": "notes",
                            "source": {"type": "text", "media_type": "text/plain", "data": "x"},
                        },
                    ],
                }
            ],
        )
    assert server.loop.requests[0].messages is not None
    assert server.loop.requests[0].messages[0].parts == (
        Image(data=b"hi", mime_type="image/png"),
        Text("[Document: notes]\nx"),
    )


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (InvalidRequest("no"), anthropic.BadRequestError, "invalid_request_error"),
        (NotFound("no"), anthropic.NotFoundError, "not_found_error"),
        (Overloaded("full"), anthropic.RateLimitError, "rate_limit_error"),
        (EngineFault("died"), anthropic.InternalServerError, "api_error"),
        (Unavailable("restarting"), anthropic.APIStatusError, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_client_raises_the_class_of_the_status(
    error: Any, kind: type[anthropic.APIStatusError], name: str, stream: bool
) -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield error

    async with client_of(script) as (client, _):
        with pytest.raises(kind) as caught:
            await client.messages.create(stream=stream, **HELLO)
    assert caught.value.status_code == error.status
    body: Any = caught.value.body
    assert body["error"] == {"type": name, "message": error.message}
    assert body["request_id"] == caught.value.request_id


async def test_client_raises_for_unknown_models_and_bad_fields() -> None:
    async with client_of() as (client, _):
        with pytest.raises(anthropic.NotFoundError, match="not available"):
            await client.messages.create(**HELLO | {"model": "unknown"})
        with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.role"):
            await client.messages.create(
                model=MODEL, max_tokens=1, messages=[{"role": "robot", "content": "x"}]
            )


async def test_client_raises_an_error_within_a_stream() -> None:
    def script(request: GenerateRequest) -> Any:
        yield from list(spoken("He")(request))[:3]
        yield EngineFault("the engine stopped")

    text = ""
    async with client_of(script) as (client, _), client.messages.stream(**HELLO) as stream:
        with pytest.raises(anthropic.APIStatusError, match="the engine stopped"):
            async for piece in stream.text_stream:
                text += piece
    assert text == "He"


@pytest.mark.parametrize("prefix", ["anthropic", "compat"])
async def test_client_s_headers_may_have_either_spelling(prefix: str) -> None:
    headers = {f"{prefix}-version": "2023-06-01", f"{prefix}-beta": "some-beta-1"}
    async with client_of(**headers) as (client, _):
        message = await client.messages.create(**HELLO)
    assert message.stop_reason == "end_turn"
