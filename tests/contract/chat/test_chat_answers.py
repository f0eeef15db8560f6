"""Chat completions as clients see them, over real HTTP on loopback."""

from __future__ import annotations

import json

import pytest

from penstock.dialog import (
    ArgumentsDelta,
    GenerateRequest,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    ToolCall,
    TurnEnded,
)
from tests.support.servers.http_server import (
    CREATED,
    FINGERPRINT,
    MODEL,
    USAGE,
    frames_of,
    serving,
    spoken,
)

HELLO = {"messages": [{"role": "user", "content": "hi"}]}
NINE_FIELDS = {
    "prompt_tokens": 7,
    "completion_tokens": 4,
    "total_tokens": 11,
    "avg_tok_per_sec": pytest.approx(14.667),
    "avg_prompt_tok_per_sec": 14.0,
    "avg_compl_tok_per_sec": 16.0,
    "total_time_sec": 0.75,
    "total_prompt_time_sec": 0.5,
    "total_completion_time_sec": 0.25,
}


async def stream(server, body):
    answer = await server.http.post("/v1/chat/completions", json={**body, "stream": True})
    assert answer.status_code == 200
    frames = frames_of(answer.text)
    assert frames[-1] == "[DONE]"
    return [json.loads(frame) for frame in frames[:-1]]


async def test_answer_has_the_shape_of_the_reference_api():
    async with serving() as server:
        answer = (await server.http.post("/v1/chat/completions", json=HELLO)).json()
    assert answer.pop("id").startswith("chatcmpl-")
    usage = answer.pop("usage")
    assert answer == {
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "system_fingerprint": FINGERPRINT,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
    }
    details = {
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    assert usage == NINE_FIELDS | details


async def test_stream_names_the_role_on_the_first_chunk_only():
    async with serving() as server:
        chunks = await stream(server, HELLO)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": "!"},
        {},
    ]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {chunk["system_fingerprint"] for chunk in chunks} == {FINGERPRINT}


@pytest.mark.parametrize("extra", [{}, {"stream_options": {"include_usage": True}}, {"n": 3}])
async def test_stream_carries_usage_once_on_the_last_chunk_with_a_choice(extra):
    async with serving() as server:
        chunks = await stream(server, HELLO | extra)
    assert all(chunk["choices"] for chunk in chunks)
    assert ["usage" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["total_tokens"] == USAGE.total_tokens


async def test_streamed_and_unstreamed_answers_are_equal():
    pieces = ("Grüße", " \u2028", '"quoted"\n', "\x00\t", "🎈", "")
    body = HELLO | {"n": 2, "logprobs": True, "top_logprobs": 2}
    async with serving(spoken(*pieces)) as server:
        whole = (await server.http.post("/v1/chat/completions", json=body)).json()
        chunks = await stream(server, body)
    for choice in whole["choices"]:
        parts = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        text = "".join(part["delta"].get("content", "") for part in parts)
        logprobs = [t for part in parts if part["logprobs"] for t in part["logprobs"]["content"]]
        assert text == choice["message"]["content"] == "".join(pieces)
        assert logprobs == choice["logprobs"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["stop"]


async def test_logprobs_carry_text_bytes_and_alternatives():
    async with serving(spoken("é")) as server:
        body = HELLO | {"logprobs": True, "top_logprobs": 1}
        answer = (await server.http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -0.25,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [{"token": "alt0", "logprob": -1.0, "bytes": [97, 108, 116, 48]}],
        }
    ]


def thinking_and_calling(request: GenerateRequest):
    call = ToolCall("call_1", "weather", '{"city":"Graz"}')
    yield RunStarted(request.model or "", CREATED, 3)
    yield PartStarted(0, 0, "reasoning")
    yield ReasoningDelta(0, 0, "hm")
    yield PartEnded(0, 0, Reasoning("hm"))
    yield PartStarted(0, 1, "tool_call", "call_1", "weather")
    yield ArgumentsDelta(0, 1, '{"city":')
    yield ArgumentsDelta(0, 1, '"Graz"}')
    yield PartEnded(0, 1, call)
    yield TurnEnded(0, "tool_calls", USAGE)
    yield RunEnded("completed", USAGE)


async def test_reasoning_and_tool_calls_are_streamed_as_they_are_made():
    async with serving(thinking_and_calling) as server:
        chunks = await stream(server, HELLO)
        whole = (await server.http.post("/v1/chat/completions", json=HELLO)).json()
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    assert deltas[1] == {"reasoning_content": "hm"}
    function = {"name": "weather", "arguments": ""}
    first = {"index": 0, "id": "call_1", "type": "function", "function": function}
    assert deltas[2] == {"tool_calls": [first]}
    later = [delta["tool_calls"][0] for delta in deltas[3:-1]]
    assert "".join(call["function"]["arguments"] for call in later) == '{"city":"Graz"}'
    assert all(set(call) == {"index", "function"} for call in later)
    message = whole["choices"][0]["message"]
    assert message["content"] is None and message["reasoning_content"] == "hm"
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city":"Graz"}'
    assert whole["choices"][0]["finish_reason"] == "tool_calls"


async def test_official_client_reads_answers_streams_and_models():
    async with serving() as server:
        client = server.openai
        answer = await client.chat.completions.create(model=MODEL, **HELLO)
        assert answer.choices[0].message.content == "Hello!"
        text = ""
        usage = None
        chunks = await client.chat.completions.create(
            model="default", stream=True, stream_options={"include_usage": True}, **HELLO
        )
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
            usage = chunk.usage or usage
        assert text == "Hello!" and usage is not None and usage.total_tokens == 11
        assert [card.id async for card in client.models.list()] == ["default", MODEL]
        assert (await client.models.retrieve(MODEL)).owned_by == "local"


async def test_official_client_helper_accumulates_a_stream():
    async with (
        serving() as server,
        server.openai.chat.completions.stream(model=MODEL, **HELLO) as events,
    ):
        final = await events.get_final_completion()
    assert final.choices[0].message.content == "Hello!"
    assert final.usage is not None and final.usage.completion_tokens == 4


async def test_model_alias_default_and_absence_all_mean_the_loaded_model():
    async with serving() as server:
        for body in (HELLO, HELLO | {"model": "default"}, HELLO | {"model": MODEL}):
            answer = (await server.http.post("/v1/chat/completions", json=body)).json()
            assert answer["model"] == MODEL


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
async def test_a_message_without_content_is_refused_by_name(role):
    messages = [{"role": "user", "content": "hi"}, {"role": role, "tool_call_id": "c"}]
    async with serving() as server:
        answer = await server.http.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("messages[1].content", "missing_required_parameter")
    assert "`messages[1].content` is required" in error["message"]
