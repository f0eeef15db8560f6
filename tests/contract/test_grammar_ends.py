"""Grammars that cannot end are rejected; an answer that stops within a grammar is an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.guided_text_server import guided_text_server

HI = [{"role": "user", "content": "hi"}]
ENDLESS = {
    "type": "object",
    "properties": {"x": {"$ref": "#/properties/x"}},
    "required": ["x"],
    "additionalProperties": False,
}
NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
}
LEADS_NOWHERE = 'start: "ab" X\nX: /x+/ & /y+/'
"""Two patterns that share no text: nothing tells before they are come to."""


def schema(value: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    described = {"schema": value, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def grammar(kind: str, value: Any) -> dict[str, Any]:
    return {"grammar": {"type": kind, "value": value}}


async def ask(fields: dict[str, Any], text: str = "") -> tuple[int, dict[str, Any]]:
    async with guided_text_server(text) as server:
        answer = await server.http.post("/v1/chat/completions", json={"messages": HI} | fields)
    return answer.status_code, answer.json()


@pytest.mark.parametrize(("fields", "named"), [
    (schema(ENDLESS), "at /properties/x: no finite value matches it"),
    (schema(NODE), "at /$defs/node/properties/next: no finite value"),
    (grammar("json_schema", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}), "at /items"),
    (grammar("lark", 'start: "ab" b\nb: b "c"'), "the rule `b` can never end"),
    (grammar("lark", 'start: "a" b\nb: "(" (c | "x" b)\nc: "c" b'), "the rule `b`"),
    (grammar("lark", f"start: %json {json.dumps(ENDLESS)}"), "the rule `start`"),
    (grammar("gbnf", 'root ::= "a" more\nmore ::= "b" more'), "the rule `more`"),
    (grammar("llguidance", {"grammars": [{"lark_grammar": 'start: "a" start'}]}), "rule `start`"),
    (grammar("llguidance", {"grammars": [{"json_schema": ENDLESS}]}), "no finite value matches"),
])  # fmt: skip
async def test_grammar_that_cannot_end_is_rejected_with_its_position(
    fields: dict[str, Any], named: str
) -> None:
    status, answer = await ask(fields)
    assert status == 400, answer
    assert named in answer["error"]["message"]
    assert answer["error"]["param"] == next(iter(fields))


@pytest.mark.parametrize(("fields", "text"), [
    (grammar("lark", 'start: "a" list\nlist: "(" [list ("," list)*] ")"'), "a((),())"),
    (grammar("gbnf", 'root ::= "(" root? ")"'), "(())"),
    (schema({
        "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }},
    }), '{"next": {"next": null}}'),
    (schema({
        "type": "object",
        "properties": {"a": {"type": "null"}, "x": {"$ref": "#/properties/x"}},
        "required": ["a"],
        "additionalProperties": False,
    }), '{"a": null}'),
])  # fmt: skip
async def test_recursive_rules_that_can_end_are_accepted(fields: dict[str, Any], text: str) -> None:
    status, answer = await ask(fields, text)
    assert status == 200, answer
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize(("kind", "value"), [
    ("lark", 'start: x | "a" y? (z | "b" | w) // and so on\nx: "x" x\ny: y\nz: "(" w\nw: z | w'),
    ("lark", f'start: "ab" | "x" %json {json.dumps(ENDLESS)} | "y"'),
    ("gbnf", 'root ::= "x" x | "ab" x*\nx ::= "x" x'),
])  # fmt: skip
async def test_alternatives_that_cannot_end_are_never_started(kind: str, value: str) -> None:
    status, answer = await ask(grammar(kind, value), "x(yab")
    assert status == 200, answer
    choice = answer["choices"][0]
    assert choice["message"]["content"] in ("ab", "y") and choice["finish_reason"] == "stop"


async def test_optional_part_that_cannot_end_is_never_started() -> None:
    optional = ENDLESS | {"required": []}
    status, answer = await ask(schema(optional), '{"x": 1}')
    assert status == 200
    assert json.loads(answer["choices"][0]["message"]["content"]) == {}


async def test_endless_reference_is_ignored_without_strict() -> None:
    status, answer = await ask(schema(ENDLESS, strict=False), '{"x": 1}')
    assert status == 200
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"x": 1}


async def test_strict_function_that_cannot_be_called_is_rejected() -> None:
    function = {"name": "f", "parameters": ENDLESS, "strict": True}
    status, answer = await ask({"tools": [{"type": "function", "function": function}]})
    assert status == 400
    assert "/properties/x" in answer["error"]["message"]
    assert answer["error"]["param"] == "tools[0].function.parameters"


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}])
async def test_grammar_dead_end_is_an_error_and_logged(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    status, answer = await ask(grammar("lark", LEADS_NOWHERE) | fields, "ab")
    assert status == 400
    assert answer["error"]["code"] == "grammar_dead_end"
    assert "has a dead end" in caplog.text


async def test_grammar_dead_end_in_a_stream_is_an_error() -> None:
    body = {"messages": HI, "stream": True} | grammar("lark", LEADS_NOWHERE)
    async with guided_text_server("ab") as server:
        text = (await server.http.post("/v1/chat/completions", json=body)).text
    assert "grammar_dead_end" in text
    assert '"finish_reason":"stop"' not in text.replace(" ", "")
