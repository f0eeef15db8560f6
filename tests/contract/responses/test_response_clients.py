"""OpenAI's official client against a running server."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pydantic
import pytest
from test_background_responses import Gated

from penstock.api.codecs.responses import input_items
from penstock.dialog import (
    ArgumentsDelta,
    PartEnded,
    PartStarted,
    RunEnded,
    RunFailed,
    RunStarted,
    ToolCall,
    TurnEnded,
)
from tests.support.servers.http_server import CREATED, USAGE, spoken
from tests.support.servers.responses_server import (
    FUNCTION,
    answering,
    failing,
    thinking_and_calling,
)


class River(pydantic.BaseModel):
    name: str
    length_km: int


async def test_create_with_a_string_and_with_a_list():
    async with answering() as server:
        create = server.openai.responses.create
        assert (await create(model="default", input="hi")).output_text == "Hello!"
        items: Any = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        ]
        answer = await create(model="default", input=items)
    assert (answer.status, answer.object) == ("completed", "response")
    assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens == 1
    assert [m.role for m in server.loop.requests[1].messages] == ["developer", "user"]


async def test_streams_of_create():
    async with answering() as server:
        text = ""
        events = await server.openai.responses.create(model="default", input="hi", stream=True)
        async for event in events:
            if event.type == "response.output_text.delta":
                text += event.delta
            last = event
    assert text == "Hello!" and last.type == "response.completed"


# The specification's `reasoning` is the text of the reasoning; the client's type of that name is
# the object of the request. The client accepts either, and warns about ours when its helper copies
# it.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_the_stream_helper_accumulates():
    async with (
        answering(thinking_and_calling) as server,
        server.openai.responses.stream(model="default", input="hi", tools=[FUNCTION]) as events,
    ):
        snapshots = [
            event.snapshot
            async for event in events
            if event.type == "response.function_call_arguments.delta"
        ]
        final = await events.get_final_response()
    assert snapshots[-1] == '{"city":"Graz"}'
    reasoning, message, call = final.output
    assert (reasoning.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert reasoning.content[0].text == "hm" and call.arguments == '{"city":"Graz"}'
    assert final.reasoning == "hm"


async def test_parse_reads_what_the_schema_asks_for():
    async with answering(spoken('{"name": "Ob", ', '"length_km": 3650}')) as server:
        answer = await server.openai.responses.parse(
            model="default", input="a river?", text_format=River
        )
        async with server.openai.responses.stream(
            model="default", input="a river?", text_format=River
        ) as events:
            streamed = await events.get_final_response()
    assert answer.output_parsed == streamed.output_parsed == River(name="Ob", length_km=3650)
    constraint = server.loop.requests[0].constraint
    assert constraint is not None and constraint.kind == "json_schema" and constraint.strict


async def test_the_loop_of_function_calls_by_items_and_by_id():
    async with answering(thinking_and_calling) as server:
        client = server.openai.responses
        tools: Any = [openai.pydantic_function_tool(River)["function"] | {"type": "function"}]
        first = await client.create(model="default", input="hi", tools=[FUNCTION, *tools])
        (call,) = (item for item in first.output if item.type == "function_call")
        result: Any = {
            "type": "function_call_output",
            "call_id": call.call_id,
            "output": "rain",
        }
        items: Any = [{"role": "user", "content": "hi"}, *first.output, result]
        await client.create(model="default", input=items, tools=[FUNCTION])
        await client.create(
            model="default", input=[result], previous_response_id=first.id, tools=[FUNCTION]
        )
    by_items, by_id = (request.messages for request in server.loop.requests[1:])
    assert by_items == by_id


async def test_retrieve_delete_and_the_errors_after_it():
    async with answering() as server:
        client = server.openai.responses
        made = await client.create(model="default", input="hi", metadata={"a": "b"})
        found = await client.retrieve(made.id)
        assert (found.output_text, found.metadata) == ("Hello!", {"a": "b"})
        await client.delete(made.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.retrieve(made.id)
        assert caught.value.code == "response_not_found"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.create(model="default", input="hi", temperature=3)
        assert refused.value.param == "temperature"


async def test_background_polling_and_cancel():
    script = Gated()
    async with answering(script) as server:
        client = server.openai.responses
        made = await client.create(model="default", input="hi", background=True)
        assert made.status == "queued"
        script.start.set()
        while (await client.retrieve(made.id)).status == "queued":
            await asyncio.sleep(0.001)
        await script.half.wait()
        stopped = await client.cancel(made.id)
        assert stopped.status == "cancelled" and stopped.output_text == "Hel"


async def test_a_failing_stream_shows_both_events():
    failure = RunFailed(500, "server_error", "engine_fault", "the engine failed")
    async with answering(failing(failure)) as server:
        events = await server.openai.responses.create(model="default", input="hi", stream=True)
        seen = [event async for event in events]
    error, failed = seen[-2:]
    assert error.type == "error" and error.message == "the engine failed"
    assert failed.type == "response.failed" and failed.response.error.code == "engine_fault"


def breaking_off_a_call(request):
    yield RunStarted(request.model or "", CREATED, 3)
    yield PartStarted(0, 0, "tool_call", "call_1", "weather")
    yield ArgumentsDelta(0, 0, '{"ci')
    yield PartEnded(0, 0, ToolCall("call_1", "weather", '{"ci'))
    yield TurnEnded(0, "length", USAGE)
    yield RunEnded("incomplete", USAGE)


@pytest.mark.parametrize("script", [spoken("hi"), breaking_off_a_call])
async def test_input_that_ends_with_an_answer_is_listed_whole(script):
    said: Any = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with answering(script) as server:
        client = server.openai.responses
        response = await client.create(model="default", input=said, tools=[FUNCTION])
        items = [item async for item in client.input_items.list(response.id, order="asc")]
    assert [item.content[0].text for item in items] == ["a", "b"]


async def test_input_items_are_listed_in_a_thread(monkeypatch):
    threads = []

    def listed(*args):
        threads.append(threading.current_thread())
        return input_items(*args)

    monkeypatch.setattr("penstock.api.routes.responses.input_items", listed)
    async with answering() as server:
        client = server.openai.responses
        response = await client.create(model="default", input="hi")
        assert len((await client.input_items.list(response.id)).data) == 1
    assert threads and threading.current_thread() not in threads


async def test_input_items_page_by_page():
    async with answering(thinking_and_calling) as server:
        client = server.openai.responses
        first = await client.create(model="default", input="hi", tools=[FUNCTION])
        result: Any = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        second = await client.create(
            model="default",
            input=[result],
            instructions="be brief",
            previous_response_id=first.id,
            tools=[FUNCTION],
        )
        items = [item async for item in client.input_items.list(second.id, limit=2, order="asc")]
        newest = await client.input_items.list(second.id)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.input_items.list(second.id, after="msg_1")
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item.type for item in items] == kinds
    assert items[0].content[0].text == "hi" and items[-1].output == "rain"
    assert [item.id for item in newest.data] == [item.id for item in reversed(items)]
    assert len({item.id for item in items}) == 5 and caught.value.param == "after"
