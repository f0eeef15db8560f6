"""A call that the model breaks off is not announced as one to run, in any dialect, streamed or
not."""

from __future__ import annotations

import pytest

from tests.support.servers.scripted_text_server import chat, message, response, text_server

PART = '{"numbers": [1, 2'
BROKEN = '<tool_call>\n{"name": "calc", "arguments": ' + PART
WHOLE = '<tool_call>\n{"name": "calc", "arguments": {"numbers": [3]}}\n</tool_call>\n'
# As many tokens as characters; far more than the call needs, or too few for the rest of it.
ENDED = (BROKEN, 500)
CUT = (BROKEN + ", 3]}}\n</tool_call>", len(BROKEN))

pytestmark = [
    pytest.mark.parametrize("stream", [False, True]),
]


@pytest.mark.parametrize(("text", "most", "finish"), [(*ENDED, "stop"), (*CUT, "length")])
async def test_chat_does_not_finish_with_calls(
    text: str, most: int, finish: str, stream: bool
) -> None:
    async with text_server(text) as server:
        found = await chat(server, stream=stream, max_tokens=most)
    assert found == {"finish": finish, "text": "", "calls": [("calc", PART)]}


@pytest.mark.parametrize(("text", "most", "status"), [(*ENDED, "completed"), (*CUT, "incomplete")])
async def test_the_item_of_a_response_is_incomplete(
    text: str, most: int, status: str, stream: bool
) -> None:
    async with text_server(text) as server:
        found = await response(server, stream=stream, max_output_tokens=most)
    assert found == {"status": status, "items": [("function_call", "incomplete", "calc", PART)]}


@pytest.mark.parametrize(("text", "most", "stop"), [(*ENDED, "end_turn"), (*CUT, "max_tokens")])
async def test_a_message_leaves_the_block_out(
    text: str, most: int, stop: str, stream: bool
) -> None:
    async with text_server("Well. " + text) as server:
        found = await message(server, stream=stream, max_tokens=most + len("Well. "))
    assert found == {"stop": stop, "content": [("text", "Well.")]}


async def test_a_whole_call_beside_it_is_delivered(stream: bool) -> None:
    async with text_server(WHOLE + BROKEN) as server:
        in_chat = await chat(server, stream=stream)
        in_response = await response(server, stream=stream)
        in_message = await message(server, stream=stream)
    whole = '{"numbers": [3]}'
    assert in_chat == {"finish": "stop", "text": "", "calls": [("calc", whole), ("calc", PART)]}
    assert in_response["items"] == [
        ("function_call", "completed", "calc", whole),
        ("function_call", "incomplete", "calc", PART),
    ]
    assert in_message == {"stop": "end_turn", "content": [("calc", {"numbers": [3]})]}


async def test_text_behind_it_keeps_its_place(stream: bool) -> None:
    async with text_server(BROKEN + "} and on") as server:
        in_response = await response(server, stream=stream)
        in_message = await message(server, stream=stream)
    assert in_response["items"] == [
        ("function_call", "incomplete", "calc", PART),
        ("message", "completed", "} and on", ""),
    ]
    assert in_message == {"stop": "end_turn", "content": [("text", "} and on")]}


async def test_arguments_that_are_no_json_are_no_call_to_run(stream: bool) -> None:
    arguments = '{"numbers": [1,]}'
    text = '<tool_call>\n{"name": "calc", "arguments": ' + arguments + "}\n</tool_call>"
    async with text_server(text) as server:
        in_chat = await chat(server, stream=stream)
        in_message = await message(server, stream=stream)
    assert in_chat == {"finish": "stop", "text": "", "calls": [("calc", arguments)]}
    assert in_message == {"stop": "end_turn", "content": []}


@pytest.mark.parametrize(
    ("syntax", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=calc>\n"),
        ("glm", "<tool_call>calc\n"),
        ("harmony", "<|channel|>commentary to=functions.calc <|constrain|>json<|message|>"),
    ],
)
async def test_a_call_without_its_arguments_is_none(syntax: str, text: str, stream: bool) -> None:
    async with text_server(text, syntax) as server:
        found = await chat(server, stream=stream)
        in_message = await message(server, stream=stream)
    assert found["finish"] == "stop"
    assert in_message == {"stop": "end_turn", "content": []}
