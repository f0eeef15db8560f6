"""Every field of a Messages request, as decoded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from messages_decoder import BASE, SCHEMA, TOOL, parts, refused, request, user

from penstock.api.codecs.messages import decode
from penstock.dialog import (
    Constraint,
    FunctionTool,
    Message,
    Permissions,
    PythonTool,
    Reasoning,
    ReasoningPolicy,
    RequestedFile,
    SearchTool,
    ShellTool,
    SkillReference,
    Text,
    ToolCall,
    ToolPolicy,
    ToolResult,
)


def test_plain_fields_reach_the_request() -> None:
    decoded = decode(
        json.dumps(
            BASE
            | {
                "model": "m",
                "stream": True,
                "stop_sequences": ["END", "\n\n"],
                "temperature": 1,
                "top_p": 0.5,
                "top_k": 40,
                "min_p": 0.1,
                "presence_penalty": 1,
                "frequency_penalty": -1,
                "repetition_penalty": 1.1,
                "dry_multiplier": 0.8,
                "logit_bias": {"5": 1},
                "logprobs": True,
                "top_logprobs": 2,
                "max_tool_rounds": 3,
                "truncate_sequence": True,
                "session_id": "s",
                "agent_permission": "ask",
                "code_execution_permission": "deny",
                "files": [{"name": "a.csv", "format": "csv", "description": "table"}],
            }
        ).encode()
    )
    got = decoded.request
    assert decoded.stream and got.model == "m" and got.stop == ("END", "\n\n")
    sampling = got.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (
        1.0,
        0.5,
        40,
        0.1,
    )
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.dry_multiplier) == (1.1, 0.8)
    assert sampling.logit_bias == {5: 1.0} and got.top_logprobs is None
    assert (got.limits.max_tokens, got.limits.max_rounds, got.limits.truncate) == (5, 3, True)
    assert got.session == "s" and got.permissions == Permissions("ask", "deny")
    assert got.files == (RequestedFile("a.csv", "csv", "table"),)


def test_max_tokens_may_be_left_out() -> None:
    body = json.dumps({"messages": BASE["messages"]}).encode()
    assert decode(body).request.limits.max_tokens is None


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("be brief", (Text("be brief"),)),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], (Text("a"), Text("b"))),
        ([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], (Text("a"),)),
    ],
)
def test_system_is_a_string_or_blocks(system: Any, expected: Any) -> None:
    messages = request(system=system).messages
    assert messages == (Message("system", expected), Message("user", (Text("hi"),)))


@pytest.mark.parametrize("system", [None, "", []])
def test_empty_system_is_none(system: Any) -> None:
    assert request(system=system).messages == (Message("user", (Text("hi"),)),)


def test_conversation_with_calls_and_results() -> None:
    got = request(
        messages=[
            {"role": "user", "content": "weather?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "redacted_thinking", "data": "zz"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Graz"}},
                    {"type": "tool_use", "id": "c2", "name": "time", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "31 °C"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "c2",
                        "is_error": True,
                        "content": [
                            {"type": "text", "text": "no"},
                            {"type": "text", "text": "way"},
                        ],
                    },
                    {"type": "text", "text": "so?"},
                ],
            },
        ]
    )
    assert got.messages == (
        Message("user", (Text("weather?"),)),
        Message(
            "assistant",
            (
                Reasoning("hm"),
                Text("I look."),
                ToolCall("c1", "weather", '{"city":"Graz"}'),
                ToolCall("c2", "time", "{}"),
            ),
        ),
        Message(
            "user",
            (
                ToolResult("c1", "31 °C", "weather"),
                ToolResult("c2", "no\nway", "time", True),
                Text("so?"),
            ),
        ),
    )


def test_last_words_of_the_assistant_begin_the_answer() -> None:
    question = {"role": "user", "content": "hi"}
    got = request(messages=[question, {"role": "assistant", "content": "The answer is ("}])
    assert (
        got.messages == (Message("user", (Text("hi"),)),) and got.answer_prefix == "The answer is ("
    )
    assert got.reasoning == ReasoningPolicy(False)
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    got = request(messages=[question, {"role": "assistant", "content": [call]}])
    assert got.answer_prefix == "" and got.messages is not None and len(got.messages) == 2
    alone = [{"role": "assistant", "content": "x"}]
    assert request(messages=alone).answer_prefix == "", "some templates need a message"
    assert request(messages=alone, system="Be brief.").answer_prefix == "x"
    ends = [question, {"role": "assistant", "content": "The answer is "}]
    assert refused(messages=ends).field == "messages"
    thinks = [question, {"role": "assistant", "content": "x"}]
    assert refused(messages=thinks, thinking={"type": "enabled"}).field == "messages"


def test_turns_of_one_role_are_joined() -> None:
    got = request(
        messages=[
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "c"},
            {"role": "system", "content": "d"},
            {"role": "user", "content": "e"},
        ]
    )
    assert got.messages == (
        Message("user", (Text("a"), Text("b"))),
        Message("assistant", (Text("c"),)),
        Message("system", (Text("d"),)),
        Message("user", (Text("e"),)),
    )


@pytest.mark.parametrize("content", [None, "", []])
def test_failed_call_without_words_says_that_it_failed(content: Any) -> None:
    block = {"type": "tool_result", "tool_use_id": "c", "content": content, "is_error": True}
    assert parts(block) == (ToolResult("c", "The call failed.", None, True),)


def test_the_vendors_agent_says_whom_to_bill_and_that_is_no_instruction() -> None:
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.ed9;"}
    asked = request(system=[billing, {"type": "text", "text": "be brief"}])
    assert asked.messages is not None
    assert asked.messages[0] == Message("system", (Text("be brief"),))
    assert [m.role for m in request(system=[billing]).messages or ()] == ["user"]


def test_functions_of_the_client() -> None:
    strict = {"type": "custom", "name": "g", "input_schema": SCHEMA, "strict": True}
    assert request(tools=[TOOL, strict]).tools == (
        FunctionTool("f", "does", {"type": "object"}),
        FunctionTool("g", None, SCHEMA, True),
    )


@pytest.mark.parametrize(
    ("fields", "hosted"),
    [
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]},
            (SearchTool(max_uses=3),),
        ),
        (
            {
                "tools": [
                    {
                        "type": "web_search_20250305",
                        "name": "web_search",
                        "allowed_domains": ["a.example"],
                        "blocked_domains": ["b.example"],
                        "user_location": {"type": "approximate", "city": "Graz"},
                    }
                ]
            },
            (
                SearchTool(
                    location={"city": "Graz"},
                    allowed_domains=("a.example",),
                    blocked_domains=("b.example",),
                ),
            ),
        ),
        (
            {"tools": [{"type": "web_search_20260209", "name": "web_search"}]},
            (SearchTool(), PythonTool()),
        ),
        (
            {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
            (PythonTool(),),
        ),
        ({"enable_code_execution": True}, (PythonTool(),)),
        ({"enable_code_execution": False}, ()),
        ({"web_search_options": {}}, (SearchTool(),)),
        (
            {"web_search_options": {"search_context_size": "low"}},
            (SearchTool(context_size="low"),),
        ),
        (
            {
                "container": {
                    "skills": [
                        {"type": "custom", "skill_id": "a", "version": "latest"},
                        {"type": "custom", "skill_id": "b", "version": "3"},
                        {"type": "custom", "skill_id": "c", "version": 4},
                        {"type": "custom", "skill_id": "d"},
                    ]
                }
            },
            (
                ShellTool(
                    (
                        SkillReference("a"),
                        SkillReference("b", 3),
                        SkillReference("c", 4),
                        SkillReference("d"),
                    )
                ),
            ),
        ),
        ({"container": {"skills": []}}, ()),
    ],
)
def test_server_tools_are_told_by_type_and_by_field(fields: Any, hosted: Any) -> None:
    got = request(**fields)
    assert got.hosted == hosted and got.tools == ()


@pytest.mark.parametrize(
    ("choice", "policy"),
    [
        (None, ToolPolicy()),
        ({"type": "auto"}, ToolPolicy("auto")),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolPolicy("auto", (), False)),
        ({"type": "any"}, ToolPolicy("required")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolPolicy("required", (), False)),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolPolicy("required")),
        ({"type": "tool", "name": "f"}, ToolPolicy("required", ("f",))),
        ({"type": "none"}, ToolPolicy("none")),
    ],
)
def test_tool_choice(choice: Any, policy: ToolPolicy) -> None:
    assert request(tools=[TOOL], tool_choice=choice).tool_policy == policy


def test_tool_choice_any_is_satisfied_by_server_tools() -> None:
    asked = request(enable_code_execution=True, tool_choice={"type": "any"})
    assert asked.tool_policy == ToolPolicy("required")


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, ReasoningPolicy()),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ReasoningPolicy(True)),
        ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, ReasoningPolicy(True)),
        ({"thinking": {"type": "adaptive"}}, ReasoningPolicy()),
        ({"thinking": {"type": "disabled"}}, ReasoningPolicy(False)),
        ({"enable_thinking": False}, ReasoningPolicy(False)),
        ({"reasoning_effort": "high"}, ReasoningPolicy(True, "high")),
        ({"output_config": {"effort": "max"}}, ReasoningPolicy(None, "xhigh")),
        (
            {"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}},
            ReasoningPolicy(True, "low"),
        ),
        (
            {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}},
            ReasoningPolicy(False),
        ),
    ],
)
def test_thinking_is_tri_state(fields: Any, policy: ReasoningPolicy) -> None:
    assert request(**fields).reasoning == policy


@pytest.mark.parametrize(
    "fields",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        {"output_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"grammar": {"type": "json_schema", "value": SCHEMA}},
    ],
)
def test_answers_can_be_bound_to_a_schema(fields: Any) -> None:
    text = json.dumps(SCHEMA, separators=(",", ":"))
    assert request(**fields).constraint == Constraint(
        "json_schema", text, closed="grammar" not in fields
    )


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "x", [], [1], {}, {"a": [None]}])
def test_ignored_and_unknown_fields_take_any_type(value: Any) -> None:
    names = ("metadata", "service_tier", "cache_control")
    fields = dict.fromkeys((*names, "never_heard_of", "mcp_servers", "betas"), value)
    assert request(**fields) == request()
    block = {"type": "text", "text": "hi", "cache_control": value, "citations": value}
    assert request(messages=user(block)) == request()
