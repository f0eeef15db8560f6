"""Tool calls over HTTP: the arguments are valid JSON that clients can parse.

A scripted model behind the real engine writes the part of a given text that the grammar allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.guided_text_server import guided_text_server

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["path"],
}
FUNCTION = {"name": "edit", "parameters": PARAMETERS}
HI = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/responses": {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
    "/v1/messages": {
        "messages": HI,
        "max_tokens": 200,
        "tools": [{"name": "edit", "input_schema": PARAMETERS}],
    },
}
CALL = '<tool_call>\n{"name": "edit", "arguments": %s}\n</tool_call>'


def calls_of(path: str, answer: dict[str, Any]) -> list[Any]:
    """Return the decoded arguments of the calls in an answer."""
    match path:
        case "/v1/chat/completions":
            calls = answer["choices"][0]["message"].get("tool_calls") or []
            return [json.loads(call["function"]["arguments"]) for call in calls]
        case "/v1/responses":
            calls = [item for item in answer["output"] if item["type"] == "function_call"]
            return [json.loads(call["arguments"]) for call in calls]
        case _:
            return [part["input"] for part in answer["content"] if part["type"] == "tool_use"]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("written", [
    r'{"path": "C:\q\b"}',  # an invalid escape
    '{"path": 7, "line": 3}',  # a type that the schema does not allow
    '{"path": "a", "line": "x3"}',
    "'none'",
])  # fmt: skip
async def test_arguments_match_the_schema_without_strict(path: str, written: str) -> None:
    async with guided_text_server("I edit it.\n" + CALL % written) as server:
        answer = (await server.http.post(path, json=ASKED[path])).json()
    (given,) = calls_of(path, answer)
    assert isinstance(given["path"], str) and set(given) <= {"path", "line"}
    assert isinstance(given.get("line", 0), int)


async def test_unenforceable_schema_still_gives_valid_json() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "strin"}}, "not": {"required": ["b"]}}
    tools = [{"type": "function", "function": {"name": "edit", "parameters": odd}}]
    async with guided_text_server(CALL % r'{"a": "\q"}') as server:
        body = ASKED["/v1/chat/completions"] | {"tools": tools}
        answer = await server.http.post("/v1/chat/completions", json=body)
        (given,) = calls_of("/v1/chat/completions", answer.json())
        assert isinstance(given, dict)
        tools[0]["function"]["strict"] = True
        answer = await server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("tools[0].function.parameters")


async def test_answer_without_a_call_is_never_masked() -> None:
    async with guided_text_server('No call, but { and <tool and "edit are fine.') as server:
        body = ASKED["/v1/chat/completions"]
        answer = (await server.http.post("/v1/chat/completions", json=body)).json()
        metrics = (await server.http.get("/metrics")).text
    assert answer["choices"][0]["message"]["content"].endswith("are fine.")
    assert "service_grammar_mask_seconds_total 0.0" in metrics
