"""Chat decodes every form of `tool_choice`, `strict`, `grammar` and `response_format`."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.api.codecs.chat import decode
from penstock.base.errors import InvalidRequest
from penstock.dialog import Constraint, ToolPolicy
from tests.support.request_decoder import RequestDecoder

SCHEMA = {"type": "object"}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "function": {"name": "g", "parameters": SCHEMA}},
]


request = RequestDecoder(decode, {"messages": [{"role": "user", "content": "hi"}]}).request


@pytest.mark.parametrize(
    ("choice", "policy"),
    [
        (None, ToolPolicy()),
        ("auto", ToolPolicy("auto")),
        ("none", ToolPolicy("none")),
        ("required", ToolPolicy("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolPolicy("required", ("g",))),
        ({"type": "function", "name": "g"}, ToolPolicy("required", ("g",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]},
            ToolPolicy("auto", ("g",)),
        ),
    ],
)
def test_tool_choice_in_every_form(choice: Any, policy: ToolPolicy) -> None:
    assert request(tools=TOOLS, tool_choice=choice).tool_policy == policy


def test_a_required_call_needs_a_tool() -> None:
    for tools in ({}, {"tools": []}):
        with pytest.raises(InvalidRequest) as caught:
            request(tool_choice="required", **tools)
        assert caught.value.status == 400


def test_strict_is_of_the_function_that_has_it() -> None:
    assert [tool.strict for tool in request(tools=TOOLS).tools] == [True, False]


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            Constraint("json_schema", '{"type":"object"}', closed=True),
        ),
        ({"grammar": {"type": "regex", "value": "a+"}}, Constraint("regex", "a+")),
        ({"grammar": {"type": "lark", "value": "start: /a/"}}, Constraint("lark", "start: /a/")),
        (
            {"grammar": {"type": "gbnf", "value": "root ::= [a]"}},
            Constraint("gbnf", "root ::= [a]"),
        ),
        ({"grammar": "root ::= [a]"}, Constraint("gbnf", "root ::= [a]")),
        ({"grammar": ""}, None),
    ],
)
def test_answers_are_bound_by_format_or_grammar(fields: Any, constraint: Any) -> None:
    assert request(**fields).constraint == constraint
