"""Hosted tools: supported settings are decoded, unsupported ones are refused by name."""

from __future__ import annotations

import json

import pytest

from penstock.api.codecs.responses import decode as decode_responses
from penstock.base.errors import InvalidRequest
from penstock.dialog import PythonTool, SearchTool, ShellTool, SkillReference

SKILL = {"type": "skill_reference", "skill_id": "skill_1"}
DOMAINS = [f"host{i}.example" for i in range(100)]


def decode(*tools):
    body = json.dumps({"input": "hi", "tools": tools}).encode()
    return decode_responses(body).request.hosted


def shell(**environment):
    return {"type": "shell", "environment": {"type": "container_auto"} | environment}


def search(**fields):
    return {"type": "web_search"} | fields


def preview(**fields):
    return {"type": "web_search_preview"} | fields


def python(**container):
    return {"type": "code_interpreter", "container": {"type": "auto"} | container}


@pytest.mark.parametrize(
    ("tool", "wanted"),
    [
        ({"type": "web_search"}, SearchTool()),
        ({"type": "web_search_2025_08_26"}, SearchTool()),
        (
            {
                "type": "web_search",
                "search_context_size": "low",
                "user_location": {"type": "approximate", "city": "Graz", "country": None},
                "filters": {"allowed_domains": DOMAINS, "blocked_domains": ["b.example"]},
                "search_content_types": ["text"],
                "external_web_access": True,
            },
            SearchTool("low", {"city": "Graz"}, tuple(DOMAINS), ("b.example",)),
        ),
        ({"type": "web_search", "return_token_budget": "unlimited"}, SearchTool("high")),
        ({"type": "web_search_preview", "external_web_access": False}, SearchTool()),
        ({"type": "web_search_preview_2025_03_11"}, SearchTool()),
        (python(), PythonTool()),
        (shell(), ShellTool()),
        (shell(skills=[SKILL]), ShellTool((SkillReference("skill_1"),))),
        (shell(skills=[SKILL | {"version": "latest"}]), ShellTool((SkillReference("skill_1"),))),
        (shell(skills=[SKILL | {"version": "3"}]), ShellTool((SkillReference("skill_1", 3),))),
        (shell(skills=[SKILL | {"version": 3}]), ShellTool((SkillReference("skill_1", 3),))),
    ],
)
def test_supported_tools_are_decoded(tool, wanted):
    assert decode(tool) == (wanted,)


@pytest.mark.parametrize(
    ("field", "tool"),
    [
        ("search_content_types[1]", search(search_content_types=["text", "image"])),
        ("image_settings", {"type": "web_search", "image_settings": {"max_results": 3}}),
        ("external_web_access", {"type": "web_search", "external_web_access": False}),
        ("filters.allowed_domains", search(filters={"allowed_domains": [*DOMAINS, "x"]})),
        ("filters.blocked_domains", search(filters={"blocked_domains": [*DOMAINS, "x"]})),
        ("search_context_size", {"type": "web_search", "search_context_size": "huge"}),
        ("user_location.type", {"type": "web_search", "user_location": {"type": "exact"}}),
        ("filters", {"type": "web_search_preview", "filters": {"allowed_domains": ["a.example"]}}),
        ("return_token_budget", {"type": "web_search_preview", "return_token_budget": "default"}),
        ("search_content_types[0]", preview(search_content_types=["image"])),
        ("container", {"type": "code_interpreter"}),
        ("container", {"type": "code_interpreter", "container": "cntr_1"}),
        ("container.type", {"type": "code_interpreter", "container": {}}),
        ("container.type", python(type="manual")),
        ("container.file_ids", python(file_ids=["file-1"])),
        ("container.memory_limit", python(memory_limit="4g")),
        ("environment", {"type": "shell"}),
        ("environment.type", shell(type="local", path="/srv")),
        ("environment.type", shell(type="container_reference", container_id="cntr_1")),
        ("environment.file_ids", shell(file_ids=["file-1"])),
        ("environment.skills[0].type", shell(skills=[{"type": "local", "path": "/srv"}])),
        ("environment.skills[0].type", shell(skills=[{"type": "inline", "source": {}}])),
        ("environment.skills[0].type", shell(skills=[{"path": "/srv"}])),
        ("environment.skills[0].skill_id", shell(skills=[{"type": "skill_reference"}])),
        ("environment.skills[0].version", shell(skills=[SKILL | {"version": "newest"}])),
        ("environment.skills[0].version", shell(skills=[SKILL | {"version": 0}])),
    ],
)
def test_what_is_rejected_is_named(field, tool):
    with pytest.raises(InvalidRequest) as caught:
        decode(tool)
    assert caught.value.field == f"tools[0].{field}"


def test_a_tool_may_be_given_once():
    with pytest.raises(InvalidRequest) as caught:
        decode(python(), {"type": "function", "name": "f"}, python())
    assert caught.value.field == "tools[2].type"
