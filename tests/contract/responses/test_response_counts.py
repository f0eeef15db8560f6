"""`POST /v1/responses/input_tokens`, and the official client's methods that have no route."""

from __future__ import annotations

import openai
import pytest

from penstock.dialog import Message, Text
from tests.support.servers.http_server import USAGE, spoken
from tests.support.servers.responses_server import URL, answering, create, get


async def test_tokens_of_a_prompt_are_counted_with_all_that_was_said_before() -> None:
    async with answering(spoken("Hello")) as server:
        first = await create(server, instructions="be kind")
        counted = await server.openai.responses.input_tokens.count(
            model="default", input="bye", instructions="be brief", previous_response_id=first["id"]
        )
        assert (counted.object, counted.input_tokens) == (
            "response.input_tokens",
            USAGE.prompt_tokens,
        )
        request = server.loop.requests[-1]
        assert request.messages == (
            Message("system", (Text("be brief"),)),
            Message("user", (Text("hi"),)),
            Message("assistant", (Text("Hello"),)),
            Message("user", (Text("bye"),)),
        )
        assert server.loop.running == 0
        listed = await get(server, "input_tokens", status=404)
        assert listed["error"]["code"] == "response_not_found"


async def test_what_is_wrong_with_a_request_to_count_is_told() -> None:
    async with answering() as server:
        for fields, status, field in (
            ({"input": 3}, 400, "input"),
            ({"input": "x", "previous_response_id": "resp_x"}, 404, "previous_response_id"),
        ):
            answer = await server.http.post(f"{URL}/input_tokens", json=fields)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)


async def test_a_compaction_is_refused_with_what_to_do() -> None:
    async with answering() as server:
        with pytest.raises(openai.NotFoundError, match=r"does not compact.*truncation"):
            await server.openai.responses.compact(model="default", input="hi")
