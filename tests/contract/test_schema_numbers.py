"""Numbers in schemas: an answer has exactly their digits, or the schema is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.guided_text_server import guided_text_server

HI = [{"role": "user", "content": "hi"}]
LONG = 1234567890123456789
"""No double is this number."""


def asked(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    described = {"schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


async def ask(fields: dict[str, Any], text: str = "") -> tuple[int, dict[str, Any]]:
    async with guided_text_server(text) as server:
        answer = await server.http.post("/v1/chat/completions", json={"messages": HI} | fields)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(("schema", "place"), [
    ({"enum": [LONG]}, "used: `enum`"),
    ({"const": -LONG}, "used: `const`"),
    ({"enum": [2**64 + 1, 1]}, "used: `enum`"),
    ({"const": {"a": [LONG]}}, "used: `const`"),
    ({"type": "integer", "minimum": LONG}, "used: `minimum`"),
    ({"type": "integer", "exclusiveMaximum": 2**60}, "used: `exclusiveMaximum`"),
    ({"type": "number", "maximum": 2**60}, "used: `maximum`"),
    ({"type": "array", "items": {"const": LONG}}, "at /items: `const`"),
    ({"type": "object", "properties": {"a/b": {"anyOf": [{"enum": [LONG]}]}}},
     "at /properties/a~1b/anyOf/0: `enum`"),
])  # fmt: skip
async def test_inexact_number_is_rejected_with_its_position(schema: Any, place: str) -> None:
    status, answer = await ask(asked(schema))
    assert status == 400
    assert f"{place} cannot be enforced exactly" in answer["error"]["message"]


@pytest.mark.parametrize("number", [2**53 - 1, 2**60, -(2**53), 0.1, 1.5, 12, 1e15, 0])
async def test_exact_numbers_keep_their_digits(number: Any) -> None:
    for schema in ({"enum": [number]}, {"const": [number]}):
        status, answer = await ask(asked(schema))
        assert status == 200, answer
        written = json.loads(answer["choices"][0]["message"]["content"])
        assert written in (number, [number])


async def test_inexact_numbers_are_ignored_without_strict() -> None:
    status, answer = await ask(asked({"enum": [LONG]}, strict=False), f"{LONG}")
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == f"{LONG}"
    bounded = {"type": "integer", "minimum": LONG, "maximum": 2**53}
    status, answer = await ask(asked(bounded, strict=False), "17")
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "17")


@pytest.mark.parametrize("grammar", [
    {"type": "lark", "value": f'start: %json {{"const": {LONG}}}'},
    {"type": "json_schema", "value": {"const": LONG}},
    {"type": "llguidance", "value": {"grammars": [{"json_schema": {"const": LONG}}]}},
])  # fmt: skip
async def test_inexact_number_in_a_lark_grammar_is_rejected(grammar: dict[str, Any]) -> None:
    status, answer = await ask({"grammar": grammar})
    assert status == 400
    assert "cannot be enforced exactly" in answer["error"]["message"]


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_strict_function_with_an_inexact_number_is_rejected(mode: str) -> None:
    parameters = {"type": "object", "properties": {"id": {"const": LONG}}, "required": ["id"]}
    function: dict[str, Any] = {"name": "f", "parameters": parameters}
    fields: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    call = f'<tool_call>\n{{"name": "f", "arguments": {{"id": {LONG}}}}}\n</tool_call>'
    status, answer = await ask(fields | {"tool_choice": mode}, call)
    (called,) = answer["choices"][0]["message"]["tool_calls"]
    assert status == 200 and json.loads(called["function"]["arguments"]) == {"id": LONG}
    function["strict"] = True
    status, answer = await ask(fields | {"tool_choice": mode}, call)
    assert status == 400
    assert answer["error"]["param"] == "tools[0].function.parameters"
    assert "/properties/id" in answer["error"]["message"]
