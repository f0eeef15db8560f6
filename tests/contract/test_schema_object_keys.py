"""Which keys an object takes that a client describes: those it lists, unless it says otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.servers.guided_text_server import guided_text_server

HI = [{"role": "user", "content": "hi"}]
LISTED: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}}
INVENTED = '{"a": true, "b": false}'


def chat(schema: Any) -> dict[str, Any]:
    described = {"name": "x", "schema": schema}
    return {"messages": HI, "response_format": {"type": "json_schema", "json_schema": described}}


def responses(schema: Any) -> dict[str, Any]:
    return {
        "input": "hi",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": schema}},
    }


def messages(schema: Any) -> dict[str, Any]:
    wanted = {"type": "json_schema", "schema": schema}
    return {"messages": HI, "max_tokens": 200, "output_config": {"format": wanted}}


def structured(schema: Any) -> dict[str, Any]:
    return {"messages": HI, "structured_outputs": {"json": schema}}


def guided(schema: Any) -> dict[str, Any]:
    return {"prompt": "hi", "guided_json": schema, "max_tokens": 200}


def literal(schema: Any) -> dict[str, Any]:
    return {"messages": HI, "grammar": {"type": "json_schema", "value": schema}}


FORMS = {
    "/v1/chat/completions": [chat, structured],
    "/v1/responses": [responses],
    "/v1/messages": [messages],
    "/v1/completions": [guided],
}


def text_of(path: str, answer: dict[str, Any]) -> str:
    match path:
        case "/v1/responses":
            return answer["output"][-1]["content"][0]["text"]
        case "/v1/messages":
            return answer["content"][0]["text"]
        case "/v1/completions":
            return answer["choices"][0]["text"]
        case _:
            return answer["choices"][0]["message"]["content"]


async def written(body: dict[str, Any], text: str, path: str = "/v1/chat/completions") -> Any:
    async with guided_text_server(text) as server:
        answer = await server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return json.loads(text_of(path, answer.json()))


@pytest.mark.parametrize(
    ("path", "form"), [(path, form) for path, forms in FORMS.items() for form in forms]
)
async def test_an_answer_has_no_keys_that_are_not_listed(path: str, form: Any) -> None:
    assert set(await written(form(LISTED), INVENTED, path)) == {"a"}
    free = LISTED | {"additionalProperties": True}
    assert await written(form(free), INVENTED, path) == {"a": True, "b": False}


async def test_a_grammar_of_a_schema_is_literal() -> None:
    assert await written(literal(LISTED), INVENTED) == {"a": True, "b": False}


@pytest.mark.parametrize(("schema", "text", "read"), [
    ({"type": "array", "items": LISTED, "maxItems": 1}, f"[{INVENTED}]", [{"a": True}]),
    ({"$ref": "#/$defs/x", "$defs": {"x": LISTED}}, INVENTED, {"a": True}),
    ({"anyOf": [LISTED, {"type": "null"}]}, INVENTED, {"a": True}),
    (LISTED | {"additionalProperties": {"type": "boolean"}}, '{"a": true, "b": true}',
     {"a": True, "b": True}),
    # one object from several parts
    ({"allOf": [LISTED, {"properties": {"b": {"type": "boolean"}}}]},
     '{"a": true, "b": false, "c": true}', {"a": True, "b": False}),
    ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": LISTED}}, INVENTED, {"a": True}),
    ({"allOf": [{"$ref": "#/$defs/x"}], "properties": {"b": {}}, "$defs": {"x": LISTED}},
     '{"b": false, "a": true, "c": true}', {"a": True, "b": False}),
    (LISTED | {"anyOf": [{"properties": {"b": {"const": False}}, "required": ["b"]}]},
     '{"a": true, "b": false, "c": true}', {"a": True, "b": False}),
    (LISTED | {"required": ["a", "b"]},
     '{"a": true, "b": false, "c": true}', {"a": True, "b": False}),
    ({"type": "object"}, INVENTED, {"a": True, "b": False}),
])  # fmt: skip
async def test_objects_are_closed_wherever_they_stand(schema: Any, text: str, read: Any) -> None:
    assert await written(chat(schema), text) == read


TOOLS = {
    "/v1/chat/completions": ({"messages": HI}, "function"),
    "/v1/responses": ({"input": "hi"}, "flat"),
    "/v1/messages": ({"messages": HI, "max_tokens": 200}, "input_schema"),
}
NAMED: dict[str, Any] = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "shoot"}},
    "/v1/responses": {"type": "function", "name": "shoot"},
    "/v1/messages": {"type": "tool", "name": "shoot"},
}
ABSENT = object()


async def arguments(path: str, parameters: Any, given: str, *, strict: bool) -> Any:
    """Of the call that a model makes which would write `given`."""
    fields, form = TOOLS[path]
    key = "input_schema" if form == "input_schema" else "parameters"
    function: dict[str, Any] = {"name": "shoot"} | ({"strict": True} if strict else {})
    if parameters is not ABSENT:
        function[key] = parameters
    tool: dict[str, Any] = function
    if form == "function":
        tool = {"type": "function", "function": function}
    elif form == "flat":
        tool = {"type": "function"} | function
    body = fields | {"tools": [tool], "tool_choice": NAMED[path]}
    call = f'<tool_call>\n{{"name": "shoot", "arguments": {given}}}\n</tool_call>'
    async with guided_text_server(call) as server:
        answer = await server.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    decoded = answer.json()
    match path:
        case "/v1/chat/completions":
            called = decoded["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
            return json.loads(called)
        case "/v1/responses":
            items = [item for item in decoded["output"] if item["type"] == "function_call"]
            return json.loads(items[0]["arguments"])
        case _:
            return next(p["input"] for p in decoded["content"] if p["type"] == "tool_use")


@pytest.mark.parametrize("path", TOOLS)
@pytest.mark.parametrize("strict", [False, True])
class TestFunctions:
    @pytest.mark.parametrize("parameters", [ABSENT, None, {"type": "object", "properties": {}}])
    async def test_one_without_parameters_takes_none(
        self, path: str, strict: bool, parameters: Any
    ) -> None:
        assert await arguments(path, parameters, INVENTED, strict=strict) == {}

    async def test_one_takes_the_keys_that_it_lists(self, path: str, strict: bool) -> None:
        assert await arguments(path, LISTED, INVENTED, strict=strict) == {"a": True}

    @pytest.mark.parametrize("parameters", [{}, {"type": "object"}])
    async def test_one_that_says_so_takes_anything(
        self, path: str, strict: bool, parameters: Any
    ) -> None:
        taken = await arguments(path, parameters, INVENTED, strict=strict)
        assert taken == {"a": True, "b": False}
