"""Request fields that a response echoes: only validated values, in canonical form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.api.codecs.responses import decode
from tests.support.openapi_checks import validator_of_type

FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
NESTED = {"type": "function", "function": {"name": "f", "description": "d"}}
NESTED_SHOWN = {"type": "function", "name": "f", "description": "d"}
SHELL_SKILLS = [{"type": "skill_reference", "skill_id": "s", "version": 2}]
# (field, value sent, value echoed)
CASES: list[tuple[str, Any, Any]] = [
    ("tools", [FLAT], [FLAT]),
    ("tools", [NESTED], [NESTED_SHOWN]),
    ("tools", [NESTED | {"name": 5, "defer": True}], [NESTED_SHOWN]),
    ("tools", [FLAT | {"function": None, "description": None}], [FLAT]),
    (
        "tools",
        [{"type": "web_search_2025_08_26", "filters": {"allowed_domains": ["a.at"], "x": 1}}],
        [{"type": "web_search", "filters": {"allowed_domains": ["a.at"]}}],
    ),
    (
        "tools",
        [
            {
                "type": "web_search_preview",
                "external_web_access": "whatever",
                "user_location": {"type": "approximate", "city": "Graz", "planet": 3},
            }
        ],
        [
            {
                "type": "web_search_preview",
                "user_location": {"type": "approximate", "city": "Graz"},
            }
        ],
    ),
    (
        "tools",
        [{"type": "code_interpreter", "container": {"type": "auto", "size": 1}}],
        [{"type": "code_interpreter", "container": {"type": "auto"}}],
    ),
    (
        "tools",
        [{"type": "shell", "environment": {"type": "container_auto", "skills": SHELL_SKILLS}}],
        [{"type": "shell", "environment": {"type": "container_auto", "skills": SHELL_SKILLS}}],
    ),
    ("text", {"verbosity": 3}, {"format": {"type": "text"}}),
    ("text", {"format": {"type": "text", "name": 5}}, {"format": {"type": "text"}}),
    (
        "text",
        {"format": {"type": "json_schema", "name": "n", "schema": {}, "x": 1}},
        {"format": {"type": "json_schema", "name": "n", "schema": {}}},
    ),
]
CHOICES = [
    ("required", "required"),
    ({"type": "function", "name": "f", "x": 1}, {"type": "function", "name": "f"}),
    (
        {"type": "function", "function": {"name": "f"}, "name": 5},
        {"type": "function", "name": "f"},
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [FLAT]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    ),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NESTED]}},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    ),
]


def repeated(**fields: Any) -> dict[str, Any]:
    """Return the echoed request fields of the response, validated against the OpenAPI document."""
    echoed = decode(json.dumps({"input": "x"} | fields).encode()).echoed
    described = validator_of_type("ResponseResource")
    schema = described.schema["components"]["schemas"]["ResponseResource"]
    for name, value in echoed.items():
        described.evolve(
            schema={**schema["properties"][name], "components": described.schema["components"]}
        ).validate(value)
    return echoed


@pytest.mark.parametrize(("field", "sent", "expected"), CASES)
def test_validated_fields_are_echoed(field, sent, expected):
    assert repeated(**{field: sent})[field] == expected


@pytest.mark.parametrize(("sent", "expected"), CHOICES)
def test_tool_choices_are_echoed_in_openai_form(sent, expected):
    assert repeated(tools=[FLAT], tool_choice=sent)["tool_choice"] == expected
