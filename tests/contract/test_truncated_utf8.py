"""An incomplete character at the end of an answer is dropped, in every dialect, streamed or not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.http_server import Serving, frames_of
from tests.support.servers.scripted_text_server import chat, message, posted, response, text_server

TEXT = "Grüße 水"
HALF = len(TEXT.encode()) - 1
SHOWN = "Grüße "
NO_TOOLS: dict[str, Any] = {"tools": []}

pytestmark = pytest.mark.parametrize("stream", [False, True])


async def completion(server: Serving, **fields: Any) -> str:
    text = await posted(server, "/v1/completions", {"prompt": "x"} | fields)
    frames = frames_of(text)[:-1] if fields["stream"] else [text]
    return "".join(json.loads(frame)["choices"][0]["text"] for frame in frames)


async def test_answer_cut_by_the_token_limit_drops_half_a_character(stream: bool) -> None:
    async with text_server(TEXT) as server:
        in_chat = await chat(server, stream=stream, max_tokens=HALF, **NO_TOOLS)
        in_response = await response(server, stream=stream, max_output_tokens=HALF, **NO_TOOLS)
        in_message = await message(server, stream=stream, max_tokens=HALF, **NO_TOOLS)
        in_completion = await completion(server, stream=stream, max_tokens=HALF)
    assert in_chat == {"finish": "length", "text": SHOWN, "calls": []}
    assert in_response["items"] == [("message", "incomplete", SHOWN, "")]
    assert in_message == {"stop": "max_tokens", "content": [("text", SHOWN)]}
    assert in_completion == SHOWN


async def test_answer_that_stops_within_a_character_drops_it(stream: bool) -> None:
    async with text_server(TEXT.encode()[:HALF]) as server:
        found = await chat(server, stream=stream, **NO_TOOLS)
    assert found == {"finish": "stop", "text": SHOWN, "calls": []}


@pytest.mark.parametrize("fields", [{"stop": ["zzz"]}, {"logprobs": True}, {}])
async def test_parsers_stop_strings_and_logprobs_drop_half_a_character(
    fields: dict[str, Any], stream: bool
) -> None:
    async with text_server(TEXT) as server:
        found = await chat(server, stream=stream, max_tokens=HALF, **fields)
    assert found["text"] == SHOWN


async def test_invalid_bytes_within_an_answer_become_replacement_characters(stream: bool) -> None:
    async with text_server(b"a\xe6b\xff") as server:
        found = await chat(server, stream=stream, **NO_TOOLS)
    assert found["text"] == "a\ufffdb\ufffd"
