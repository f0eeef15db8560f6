"""Where calls are required, a call that repeats an earlier one of its turn ends the turn, in every
dialect, streamed or not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.servers.scripted_text_server import chat, message, response, text_server

A, B, AB = '{"numbers": [1]}', '{"numbers": [2]}', '{"numbers": [1], "numbers": [1]}'
REQUIRED: list[Any] = [
    "required",
    {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "calc"}}],
        },
    },
]

pytestmark = pytest.mark.parametrize("stream", [False, True])


def calls(*arguments: str) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": "calc", "arguments": {given}}}\n</tool_call>'
        for given in arguments
    )


@pytest.mark.parametrize("choice", REQUIRED)
async def test_chat_ends_before_the_repetition(choice: Any, stream: bool) -> None:
    async with text_server(calls(A, B, A, A, A)) as server:
        found = await chat(server, stream=stream, tool_choice=choice)
    assert found == {"finish": "tool_calls", "text": "", "calls": [("calc", A), ("calc", B)]}


async def test_a_response_ends_before_the_repetition(stream: bool) -> None:
    async with text_server(calls(*[A] * 5)) as server:
        found = await response(server, stream=stream, tool_choice="required")
    assert found == {
        "status": "completed",
        "items": [("function_call", "completed", "calc", A)],
    }


async def test_a_message_ends_before_the_repetition(stream: bool) -> None:
    async with text_server(calls(*[A] * 5)) as server:
        found = await message(server, stream=stream, tool_choice={"type": "any"})
    assert found == {"stop": "tool_use", "content": [("calc", {"numbers": [1]})]}


async def test_a_call_that_begins_as_another_does_is_delivered(stream: bool) -> None:
    async with text_server(calls(A, AB, '{"numbers": []}')) as server:
        found = await chat(server, stream=stream, tool_choice="required")
    assert [given for _, given in found["calls"]] == [A, AB, '{"numbers": []}']


async def test_a_repetition_that_the_token_limit_cuts_is_no_whole_call(stream: bool) -> None:
    most = len(calls(A, A)) - len("1]}}\n</tool_call>")
    async with text_server(calls(A, A)) as server:
        found = await chat(server, stream=stream, tool_choice="required", max_tokens=most)
    assert found["finish"] == "length"
    assert found["calls"] == [("calc", A), ("calc", '{"numbers": [')]


async def test_a_model_that_may_stop_may_repeat_itself(stream: bool) -> None:
    async with text_server(calls(A, A)) as server:
        found = await chat(server, stream=stream, tool_choice="auto")
    assert found["calls"] == [("calc", A), ("calc", A)]
