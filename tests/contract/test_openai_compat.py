"""What of OpenAI's API a server accepts with `--openai-compat` only, which a refusal names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.config import ServerSettings
from tests.support.servers.guided_text_server import guided_text_server

COMPAT = ServerSettings(openai_compat=True)
HI = [{"role": "user", "content": "hi"}]
JSON_MODE = {"type": "json_object"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "response_format": JSON_MODE},
    "/v1/completions": {"prompt": "hi", "response_format": JSON_MODE, "max_tokens": 99},
    "/v1/responses": {"input": "hi", "text": {"format": JSON_MODE}},
}
FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
TWO_CALLS = {
    "input": "hi",
    "tools": [FUNCTION, FUNCTION | {"name": "g"}],
    "parallel_tool_calls": False,
}


def text_of(path: str, answer: dict[str, Any]) -> str:
    if path == "/v1/responses":
        return answer["output"][-1]["content"][0]["text"]
    choice = answer["choices"][0]
    return choice["text"] if path == "/v1/completions" else choice["message"]["content"]


@pytest.mark.parametrize("path", ASKED)
async def test_json_mode_is_any_object(path: str) -> None:
    async with guided_text_server('Sure: {"a": [1, {"b": null}]}', settings=COMPAT) as server:
        answer = await server.http.post(path, json=ASKED[path])
    assert answer.status_code == 200, answer.text
    assert json.loads(text_of(path, answer.json())) == {"a": [1, {"b": None}]}


async def test_json_mode_of_structured_outputs_is_any_object() -> None:
    body = {"messages": HI, "structured_outputs": {"json_object": True}}
    async with guided_text_server('{"a": 1}', settings=COMPAT) as server:
        answer = (await server.http.post("/v1/chat/completions", json=body)).json()
    assert json.loads(text_of("/v1/chat/completions", answer)) == {"a": 1}


@pytest.mark.parametrize(("path", "body"), [
    *ASKED.items(),
    ("/v1/chat/completions", {"messages": HI, "structured_outputs": {"json_object": True}}),
    ("/v1/responses", TWO_CALLS),
])  # fmt: skip
async def test_a_refusal_names_the_option(path: str, body: dict[str, Any]) -> None:
    async with guided_text_server("") as server:
        answer = await server.http.post(path, json=body)
    assert answer.status_code == 400
    assert "`--openai-compat`" in answer.json()["error"]["message"]


async def test_the_refusal_of_one_call_says_what_else_does_it() -> None:
    async with guided_text_server("") as server:
        answer = await server.http.post("/v1/responses", json=TWO_CALLS)
    assert "`tool_choice` names is called once" in answer.json()["error"]["message"]


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_calls_that_may_not_be_parallel_are_one(choice: str) -> None:
    other = CALL.replace('"f"', '"g"')  # a call that repeats an earlier one would end the turn
    async with guided_text_server(f"{CALL}\n{other}", settings=COMPAT) as server:
        body = TWO_CALLS | {"tool_choice": choice}
        answer = (await server.http.post("/v1/responses", json=body)).json()
        both = body | {"parallel_tool_calls": True}
        several = (await server.http.post("/v1/responses", json=both)).json()
    assert [item["type"] for item in answer["output"]] == ["function_call"]
    assert answer["parallel_tool_calls"] is False
    assert [item["type"] for item in several["output"]] == ["function_call"] * 2
