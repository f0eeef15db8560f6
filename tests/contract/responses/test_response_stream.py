"""The events of a streamed response, over real HTTP."""

from __future__ import annotations

import asyncio

import pytest

from penstock.base.errors import EngineFault
from penstock.config import ServerSettings
from penstock.dialog import RunEnded, RunFailed, RunStarted, Usage
from tests.support.servers.http_server import CREATED, USAGE, spoken
from tests.support.servers.responses_server import (
    FUNCTION,
    URL,
    answering,
    cut_off,
    events_of,
    failing,
    get,
    stream,
    thinking_and_calling,
)


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


async def test_text_is_streamed_in_the_vendors_order():
    async with answering() as server:
        events = await stream(server)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(11))
    added = events[2]["item"]
    assert (added["status"], added["content"]) == ("in_progress", [])
    for event in events[3:9]:
        assert (event["item_id"], event["output_index"]) == (added["id"], 0)
        assert event["content_index"] == 0
    assert [event["delta"] for event in events[4:7]] == ["Hel", "lo", "!"]
    assert events[3]["part"]["text"] == "" and events[7]["text"] == "Hello!"
    assert events[8]["part"] == events[9]["item"]["content"][0]
    assert events[9]["item"] == events[10]["response"]["output"][0]


async def test_the_first_events_show_a_response_without_output():
    async with answering() as server:
        created, working, *_ = await stream(server)
    for event in (created, working):
        response = event["response"]
        assert (response["status"], response["output"]) == ("in_progress", [])
        assert (response["usage"], response["completed_at"]) == (None, None)


async def test_reasoning_and_calls_have_events_of_their_own():
    async with answering(thinking_and_calling) as server:
        events = await stream(server, tools=[FUNCTION])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[5]["text"] == "hm"
    added, *deltas, done, ended = events[14:19]
    assert (added["item"]["name"], added["item"]["arguments"]) == ("weather", "")
    assert "".join(delta["delta"] for delta in deltas) == done["arguments"] == '{"city":"Graz"}'
    assert {event["call_id"] for event in (*deltas, done)} == {"call_1"}
    assert {event["output_index"] for event in (added, *deltas, done, ended)} == {2}
    assert (done["item_id"], done["name"]) == (ended["item"]["id"], "weather")


async def test_logprobs_come_with_the_deltas():
    async with answering(spoken("a", "b")) as server:
        events = await stream(server, top_logprobs=1)
    deltas = [event["logprobs"] for event in events if event["type"].endswith("text.delta")]
    done = next(event for event in events if event["type"].endswith("text.done"))
    assert [tokens[0]["token"] for tokens in deltas] == ["a", "b"]
    assert done["logprobs"] == deltas[0] + deltas[1]
    assert len(deltas[0][0]["top_logprobs"]) == 1


async def test_a_token_cap_ends_with_incomplete():
    async with answering(cut_off) as server:
        events = await stream(server, max_output_tokens=3)
    last = events[-1]
    assert kinds(events)[-2:] == ["output_item.done", "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (RunFailed(500, "server_error", "engine_fault", "the engine failed"), "engine_fault"),
        (EngineFault("the engine failed"), "engine_fault"),
        (ValueError("secret"), "internal_error"),
    ],
)
async def test_a_failure_is_an_error_event_and_then_response_failed(last, code):
    async with answering(failing(last)) as server:
        events = await stream(server)
        stored = await get(server, events[0]["response"]["id"])
    assert kinds(events)[-3:] == ["output_text.delta", "error", "failed"]
    error, failed = events[-2:]
    assert (error["code"], error["param"]) == (code, None)
    assert failed["response"]["error"]["code"] == code
    assert "secret" not in error["message"]
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert failed["response"]["status"] == stored["status"] == "failed"
    assert stored["error"] == failed["response"]["error"]


async def test_several_choices_are_items_whose_events_may_alternate():
    async with answering() as server:
        events = await stream(server, n=2)
    for index in (0, 1):
        mine = [event for event in events if event.get("output_index") == index]
        texts = [event["delta"] for event in mine if "delta" in event]
        assert "".join(texts) == "Hello!" and kinds(mine)[-1] == "output_item.done"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_an_idle_stream_gets_comments():
    gate = asyncio.Event()

    def script(request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield gate
        yield RunEnded("completed", USAGE)

    settings = ServerSettings(keep_alive_interval_ms=1)
    text = ""
    async with answering(script, settings=settings) as server:
        body = {"input": "hi", "stream": True}
        async with server.http.stream("POST", URL, json=body) as answer:
            async for piece in answer.aiter_text():
                text += piece
                if "\n: keep-alive\n\n" in "\n" + text:
                    gate.set()
    assert kinds(events_of(text)) == ["created", "in_progress", "completed"]


async def test_a_run_that_is_cancelled_from_within_ends_incomplete():
    def script(request):
        yield RunStarted(request.model or "", CREATED, 3)
        yield RunEnded("cancelled", Usage())

    async with answering(script) as server:
        last = (await stream(server))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
