"""Fields that the service adds to chat answers, and answers to old clients."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from penstock.base.errors import EngineFault, InvalidRequest, NotFound, Overloaded, Unavailable
from penstock.dialog import (
    ArgumentsDelta,
    GenerateRequest,
    PartEnded,
    PartStarted,
    RunEnded,
    RunStarted,
    TextDelta,
    TokenLogprob,
    ToolCall,
    TurnEnded,
)
from tests.support.servers.http_server import CREATED, MODEL, USAGE, frames_of, serving, spoken

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}


def calling(request: GenerateRequest) -> Any:
    yield RunStarted(request.model or "", CREATED, 3)
    yield PartStarted(0, 0, "tool_call", "call_1", "weather")
    yield ArgumentsDelta(0, 0, '{"city":')
    yield ArgumentsDelta(0, 0, '"Graz"}')
    yield PartEnded(0, 0, ToolCall("call_1", "weather", '{"city":"Graz"}'))
    yield TurnEnded(0, "tool_calls", USAGE)
    yield RunEnded("completed", USAGE)


async def chunks_of(server: Any, **fields: Any) -> list[dict[str, Any]]:
    answer = await server.http.post(CHAT, json=HELLO | fields | {"stream": True})
    assert answer.status_code == 200
    return [json.loads(frame) for frame in frames_of(answer.text)[:-1]]


async def test_session_is_named_on_the_answer_and_on_the_last_chunk() -> None:
    async with serving() as server:
        answer = await server.http.post(CHAT, json=HELLO | {"session_id": "s1"})
        chunks = await chunks_of(server, session_id="s1")
        plain = await server.http.post(CHAT, json=HELLO)
    assert answer.json()["session_id"] == "s1" and "session_id" not in plain.json()
    assert ["session_id" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["session_id"] == "s1" and chunks[-1]["usage"]["total_tokens"] == 11


async def test_what_is_empty_is_left_out() -> None:
    async with serving() as server:
        answer = (await server.http.post(CHAT, json=HELLO)).json()
    for field in ("session_id", "agentic_tool_calls", "files", "adapter_generation"):
        assert field not in answer


async def test_requests_with_functions_are_answered_with_a_function_call() -> None:
    async with serving(calling) as server:
        body = HELLO | {"functions": [FUNCTION]}
        choice = (await server.http.post(CHAT, json=body)).json()["choices"][0]
        chunks = await chunks_of(server, functions=[FUNCTION])
    call = {"name": "weather", "arguments": '{"city":"Graz"}'}
    assert choice["message"]["function_call"] == call
    assert "tool_calls" not in choice["message"] and choice["message"]["content"] is None
    assert choice["finish_reason"] == "function_call"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[1] == {"function_call": {"name": "weather", "arguments": ""}}
    assert deltas[2:-1] == [
        {"function_call": {"arguments": '{"city":'}},
        {"function_call": {"arguments": '"Graz"}'}},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"


async def test_official_client_reads_legacy_functions() -> None:
    async with serving(calling) as server:
        answer = await server.openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            functions=[{"name": "weather", "parameters": {"type": "object"}}],
            function_call={"name": "weather"},
        )
    message = answer.choices[0].message
    assert message.function_call is not None and message.function_call.name == "weather"
    policy = server.loop.requests[0].tool_policy
    assert (policy.mode, policy.names, policy.parallel) == ("required", ("weather",), False)


async def test_one_choice_s_tokens_do_not_wait_for_another_s() -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        for choice in (1, 0):
            yield PartStarted(choice, 0, "text")
            yield TextDelta(choice, 0, f"<{choice}>")
            yield PartEnded(choice, 0, ToolCall("", "", ""))
            yield TurnEnded(choice, "stop", USAGE)
        yield RunEnded("completed", USAGE)

    async with serving(script) as server:
        chunks = await chunks_of(server, n=2)
    said = [(c["choices"][0]["index"], c["choices"][0]["delta"].get("content")) for c in chunks]
    assert said == [(1, ""), (1, "<1>"), (1, None), (0, ""), (0, "<0>"), (0, None)]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)


async def test_logprobs_of_stream_and_answer_have_the_reference_shape() -> None:
    token = TokenLogprob(5, b"\xc3", -0.5, ((6, b"x", -1.0),))

    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield PartStarted(0, 0, "text")
        yield TextDelta(0, 0, "é", (token, token))
        yield TurnEnded(0, "stop", USAGE)
        yield RunEnded("completed", USAGE)

    shape = {
        "token": "\ufffd",
        "logprob": -0.5,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "x", "logprob": -1.0, "bytes": [0x78]}],
    }
    wanted = {"logprobs": True, "top_logprobs": 1}
    async with serving(script) as server:
        whole = (await server.http.post(CHAT, json=HELLO | wanted)).json()["choices"][0]
        chunks = await chunks_of(server, **wanted)
        plain = await chunks_of(server)
    assert whole["logprobs"] == {"content": [shape, shape]}
    assert chunks[1]["choices"][0]["logprobs"] == {"content": [shape, shape]}
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in plain)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("no", field="x"), openai.BadRequestError),
        (NotFound("no", code="file_not_found"), openai.NotFoundError),
        (Overloaded("full"), openai.RateLimitError),
        (EngineFault("died"), openai.InternalServerError),
        (Unavailable("restarting"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_official_client_raises_the_class_of_the_status(
    error: Any, kind: type[openai.APIStatusError], stream: bool
) -> None:
    def script(request: GenerateRequest) -> Any:
        yield RunStarted("m", CREATED, 1)
        yield error

    async with serving(script) as server:
        with pytest.raises(kind) as caught:
            await server.openai.chat.completions.create(model=MODEL, stream=stream, **HELLO)
    assert caught.value.status_code == error.status and error.message in caught.value.message
    assert caught.value.code == error.code and caught.value.request_id is not None


async def test_official_client_raises_an_error_within_a_stream() -> None:
    def script(request: GenerateRequest) -> Any:
        yield from list(spoken("He")(request))[:3]
        yield EngineFault("the engine stopped")

    text = ""
    async with serving(script) as server:
        stream = await server.openai.chat.completions.create(model=MODEL, stream=True, **HELLO)
        with pytest.raises(openai.APIError, match="the engine stopped"):
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
    assert text == "He"


async def test_official_client_accumulates_calls_of_a_stream() -> None:
    async with (
        serving(calling) as server,
        server.openai.chat.completions.stream(
            model=MODEL,
            messages=[{"role": "user", "content": "hi"}],
            tools=[{"type": "function", "function": {"name": "weather", "parameters": {}}}],
        ) as events,
    ):
        seen = [event.type async for event in events]
        final = await events.get_final_completion()
    assert "tool_calls.function.arguments.delta" in seen
    calls = final.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.arguments == '{"city":"Graz"}'
    assert calls[0].id == "call_1" and final.choices[0].finish_reason == "tool_calls"
