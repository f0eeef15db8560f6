"""The response resource over real HTTP, in the order of the specification's table."""

from __future__ import annotations

import re

import pytest

from penstock.agent import AgentLoop
from penstock.base.errors import Overloaded
from penstock.dialog import RunFailed
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import CREATED, MODEL, spoken
from tests.support.servers.responses_server import (
    FUNCTION,
    URL,
    answering,
    create,
    cut_off,
    get,
    stream,
    thinking_and_calling,
)

SPECIFIED = {
    "id", "object", "created_at", "completed_at", "status", "model", "output", "output_text",
    "reasoning", "error", "incomplete_details", "usage",
}  # fmt: skip
ECHOED = {
    "background", "frequency_penalty", "instructions", "max_output_tokens", "max_tool_calls",
    "metadata", "parallel_tool_calls", "presence_penalty", "previous_response_id", "store",
    "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
}  # fmt: skip


async def test_resource_has_exactly_the_fields_of_the_specification():
    async with answering() as server:
        body = await create(server)
    assert set(body) == SPECIFIED | ECHOED
    assert re.fullmatch(r"resp_[0-9a-f]{32}", body["id"])
    assert (body["object"], body["status"], body["model"]) == ("response", "completed", MODEL)
    assert body["created_at"] == CREATED and body["completed_at"] >= CREATED
    assert body["error"] is None and body["incomplete_details"] is None
    (item,) = body["output"]
    assert re.fullmatch(r"msg_[0-9a-f]{32,}", item.pop("id"))
    part = {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    assert item == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert (body["output_text"], body["reasoning"]) == ("Hello!", None)


async def test_usage_has_both_details():
    async with answering() as server:
        usage = (await create(server))["usage"]
    assert usage == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 11,
    }


async def test_reasoning_text_and_calls_are_items_of_their_own():
    async with answering(thinking_and_calling) as server:
        body = await create(server, tools=[FUNCTION])
    reasoning, message, call = body["output"]
    assert reasoning["id"].startswith("rs_") and reasoning["summary"] == []
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == body["output_text"] == "I look."
    assert call.pop("id").startswith("fc_")
    assert call == {
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "weather",
        "arguments": '{"city":"Graz"}',
    }
    assert body["reasoning"] == "hm" and body["status"] == "completed"


async def test_an_answer_that_is_cut_off_is_incomplete():
    async with answering(cut_off) as server:
        body = await create(server, max_output_tokens=3)
    assert body["status"] == "incomplete" and body["completed_at"] is None
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete" and body["output_text"] == "Hel"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("frequency_penalty", 0.5),
        ("presence_penalty", -0.5),
        ("instructions", "be brief"),
        ("max_output_tokens", 9),
        ("metadata", {"a": "b"}),
        ("parallel_tool_calls", True),
        ("temperature", 0.3),
        ("text", {"format": {"type": "text"}}),
        ("tool_choice", "none"),
        ("tools", [FUNCTION]),
        ("top_logprobs", 2),
        ("top_p", 0.4),
        ("truncation", "auto"),
    ],
)
async def test_echoed_fields(field, value):
    async with answering() as server:
        assert (await create(server, **{field: value}))[field] == value


async def test_format_of_the_chat_api_is_echoed_as_this_one():
    schema = {"name": "a", "schema": {"type": "object"}, "strict": False}
    async with answering() as server:
        body = await create(server, response_format={"type": "json_schema", "json_schema": schema})
    assert body["text"] == {"format": {"type": "json_schema", **schema}}


async def test_what_is_echoed_of_fields_that_were_not_sent():
    async with answering() as server:
        body = await create(server)
    defaults = {
        "background": False,
        "metadata": {},
        "parallel_tool_calls": True,
        "store": True,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
    }
    assert {key: body[key] for key in ECHOED} == dict.fromkeys(ECHOED) | defaults


async def test_previous_response_id_is_echoed():
    async with answering() as server:
        first = await create(server)
        second = await create(server, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]


async def test_several_choices_are_several_messages():
    async with answering() as server:
        body = await create(server, n=2)
    assert [item["content"][0]["text"] for item in body["output"]] == ["Hello!", "Hello!"]
    assert len({item["id"] for item in body["output"]}) == 2


async def test_logprobs_have_text_bytes_and_alternatives():
    async with answering(spoken("é")) as server:
        body = await create(server, top_logprobs=1)
    assert body["output"][0]["content"][0]["logprobs"] == [
        {
            "token": "é",
            "logprob": -0.25,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [{"token": "alt0", "logprob": -1.0, "bytes": [97, 108, 116, 48]}],
        }
    ]


MODES = [{}, {"background": True}, {"stream": True}, {"stream": True, "background": True}]


@pytest.mark.parametrize("fields", MODES)
async def test_a_request_that_fails_at_once_gets_its_http_status(fields):
    def refused(request):
        kind, code = "invalid_request_error", "context_length_exceeded"
        yield RunFailed(400, kind, code, "too long: `messages`", "messages")

    async with answering(refused) as server:
        error = (await create(server, 400, **fields))["error"]
    assert error == {
        "message": "too long: `input`",
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }


@pytest.mark.parametrize("fields", MODES)
async def test_a_request_that_the_engine_has_no_room_for_gets_its_http_status(fields):
    engine = ScriptedEngine([Overloaded("full", retry_after_s=7)])
    loop = AgentLoop(Generator(engine, tiny_tokenizer(), tiny_template()))
    async with answering(models={MODEL: loop}) as server:
        answer = await server.http.post(URL, json={"input": "hi"} | fields)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


async def test_instructions_come_first_and_are_not_carried_over():
    async with answering() as server:
        first = await create(server, instructions="be brief")
        await create(server, input="and?", previous_response_id=first["id"])
    asked, again = (request.messages for request in server.loop.requests)
    assert [(m.role, m.parts[0].text) for m in asked] == [("system", "be brief"), ("user", "hi")]
    assert [(m.role, m.parts[0].text) for m in again] == [
        ("user", "hi"),
        ("assistant", "Hello!"),
        ("user", "and?"),
    ]


async def test_streamed_answers_are_the_same_resource():
    async with answering(thinking_and_calling) as server:
        whole = await create(server, tools=[FUNCTION])
        last = (await stream(server, tools=[FUNCTION]))[-1]["response"]
        assert await get(server, last["id"]) == last
    for body in (whole, last):
        body.pop("id"), body.pop("completed_at")
        for item in body["output"]:
            item.pop("id")
    assert whole == last


async def test_unknown_models_are_404():
    async with answering() as server:
        assert (await create(server, 404, model="other"))["error"]["code"] == "model_not_found"
