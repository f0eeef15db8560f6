"""Every field and block of a messages request: what it becomes, and how a wrong one is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from decoding import Decoding
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.messages import decode
from penstock.api.codecs.messages.decode import IGNORED
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Constraint,
    File,
    FunctionTool,
    Image,
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

BASE: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
TOOL = {"name": "f", "description": "does", "input_schema": {"type": "object"}}
PNG = base64.b64encode(b"\x89PNG").decode()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
HELLO = Decoding(decode, BASE)
request, refused = HELLO.request, HELLO.refused


def parts(*blocks: Any, role: str = "user") -> tuple[Any, ...]:
    (message,) = request(messages=[{"role": role, "content": list(blocks)}]).messages or ()
    return message.parts


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


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
    assert got.messages == (Message("user", (Text("hi"),)),) and got.begun == "The answer is ("
    assert got.reasoning == ReasoningPolicy(False)
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    got = request(messages=[question, {"role": "assistant", "content": [call]}])
    assert got.begun == "" and got.messages is not None and len(got.messages) == 2
    alone = [{"role": "assistant", "content": "x"}]
    assert request(messages=alone).begun == "", "some templates need a message"
    assert request(messages=alone, system="Be brief.").begun == "x"
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


def test_images_by_address_and_by_content() -> None:
    def image(source: dict[str, Any]) -> Any:
        return parts({"type": "image", "source": source})[0]

    base = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert image(base) == Image(data=b"\x89PNG", mime_type="image/png")
    address = {"type": "url", "url": "https://a.example/x.png"}
    assert image(address) == Image(url="https://a.example/x.png")
    inline = {"type": "url", "url": f"data:image/png;base64,{PNG}"}
    assert image(inline) == Image(data=b"\x89PNG", mime_type="image/png")
    assert image({"type": "file", "file_id": "file-1"}) == File(file_id="file-1")


def test_image_in_a_result_stands_beside_its_text() -> None:
    source = {"type": "url", "url": "https://a.example/x.png"}
    content = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    block = {"type": "tool_result", "tool_use_id": "c", "content": content}
    assert parts(block) == (ToolResult("c", "see"), Image(url="https://a.example/x.png"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            {"type": "text", "media_type": "text/plain", "data": "whole"},
            Text("[Document: t]\nabout\nwhole"),
        ),
        ({"type": "content", "content": "whole"}, Text("[Document: t]\nabout\nwhole")),
        (
            {"type": "content", "content": [{"type": "text", "text": "whole"}]},
            Text("[Document: t]\nabout\nwhole"),
        ),
        (
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            File(name="t", data=b"%PDF", mime_type="application/pdf"),
        ),
        ({"type": "url", "url": "https://a.example/d.pdf"}, File(name="t", url="https://a.example/d.pdf")),
        ({"type": "file", "file_id": "file-1"}, File(name="t", file_id="file-1")),
    ],
)  # fmt: skip
def test_documents_of_every_source(source: dict[str, Any], expected: Any) -> None:
    block = {"type": "document", "source": source, "title": "t", "context": "about"}
    assert parts(block) == (expected,)


def test_other_blocks_of_users() -> None:
    found = {
        "type": "search_result",
        "source": "https://a.example",
        "title": "A",
        "content": [{"type": "text", "text": "x"}],
    }
    assert parts(found) == (Text("[Search result: A]\nhttps://a.example\nx"),)
    assert parts({"type": "container_upload", "file_id": "file-1"}) == (File(file_id="file-1"),)


@pytest.mark.parametrize(
    "kind",
    [
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
    ],
)
def test_blocks_of_server_tools_are_accepted_and_ignored(kind: str) -> None:
    block = {"type": kind, "id": "x", "content": [{"type": "never heard of"}]}
    question = {"role": "user", "content": "hi"}
    words = {"type": "text", "text": "so"}
    answer = {"role": "assistant", "content": [block, words]}
    got = request(messages=[question, answer, question])
    assert got.messages is not None and got.messages[1] == Message("assistant", (Text("so"),))
    got = request(messages=[question, {"role": "assistant", "content": [block]}])
    assert got.messages == (Message("user", (Text("hi"),)),)


def test_media_in_results_and_documents_are_where_the_client_wrote_them() -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PNG},
    }
    result = {"type": "tool_result", "tool_use_id": "c", "content": [picture]}
    source = {"type": "content", "content": [{"type": "text", "text": "x"}, picture]}
    document = {"type": "document", "source": source}
    asked = request(messages=user(result, document))
    assert asked.places == (
        (
            "messages",
            "messages[0].content[0].content[0]",
            "messages",
            "messages[0].content[1].source.content[1]",
        ),
    )


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
            (SearchTool(),),
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
    assert request(**fields).constraint == Constraint("json_schema", json.dumps(
        SCHEMA, separators=(",", ":")
    ))  # fmt: skip


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "x", [], [1], {}, {"a": [None]}])
def test_ignored_and_unknown_fields_take_any_type(value: Any) -> None:
    names = [name for name in IGNORED if "." not in name]
    fields = dict.fromkeys((*names, "never_heard_of", "mcp_servers", "betas"), value)
    assert request(**fields) == request()
    block = {"type": "text", "text": "hi", "cache_control": value, "citations": value}
    assert request(messages=user(block)) == request()


# field that is named -> what is sent in place of its first step
WRONG: list[tuple[str, list[Any]]] = [
    ("max_tokens", [0, -1, "5", 1.5]),
    ("model", [3, []]),
    ("stream", ["yes", 1]),
    ("temperature", [-0.1, 2.1, "1"]),
    ("top_p", [1.5]),
    ("top_k", [1.5, -2]),
    ("stop_sequences", ["x", 3, ["x"] * 65]),
    ("stop_sequences[0]", [[""], [3]]),
    ("logprobs", ["x"]),
    ("top_logprobs", [21]),
    ("enable_thinking", ["x"]),
    ("thinking", ["enabled", 3]),
    ("thinking.type", [{}, {"type": "often"}, {"type": 3}]),
    ("system", [3, {}]),
    ("system[0]", [["x"]]),
    ("system[0].type", [[{"type": "image"}]]),
    ("system[0].text", [[{"type": "text"}]]),
    ("messages", [None, 3, "x", {}, []]),
    ("messages[0]", [["x"]]),
    ("messages[0].role", [[{"content": "x"}], [{"role": "tool", "content": "x"}]]),
    ("messages[0].content", [[{"role": "user"}], [{"role": "user", "content": 3}]]),
    ("messages[0].content[0]", [user("x")]),
    (
        "messages[0].content[0].type",
        [
            user({}),
            user({"type": 3}),
            user({"type": "nonsense"}),
            user({"type": "tool_use", "id": "x", "name": "f", "input": {}}),
            user({"type": "thinking", "thinking": "x"}),
            [{"role": "assistant", "content": [{"type": "image"}]}],
            [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
        ],
    ),
    ("messages[0].content[0].text", [user({"type": "text"}), user({"type": "text", "text": 3})]),
    ("messages[0].content[0].source", [user({"type": "image"}), user({"type": "document"})]),
    (
        "messages[0].content[0].source.type",
        [user({"type": "image", "source": {}}), user({"type": "image", "source": {"type": "x"}})],
    ),
    (
        "messages[0].content[0].source.media_type",
        [
            user({"type": "image", "source": {"type": "base64", "data": PNG}}),
            user({"type": "image", "source": {"type": "base64", "media_type": "x/y", "data": PNG}}),
        ],
    ),
    (
        "messages[0].content[0].source.data",
        [
            user({"type": "image", "source": {"type": "base64", "media_type": "image/png", **data}})
            for data in ({}, {"data": 3}, {"data": ""}, {"data": "#"}, {"data": "aaaaa"})
        ],
    ),
    (
        "messages[0].content[0].source.url",
        [
            user({"type": "image", "source": {"type": "url", **url}})
            for url in ({}, {"url": 3}, {"url": "file:///etc/passwd"}, {"url": "x"},
                        {"url": "http://[x"}, {"url": "https://" + "a" * 9000})
        ],
    ),
    (
        "messages[0].content[0].source.file_id",
        [
            user({"type": "document", "source": {"type": "file", **file_id}})
            for file_id in ({}, {"file_id": ""})
        ],
    ),
    ("messages[0].content[0].tool_use_id", [user({"type": "tool_result"})]),
    (
        "messages[0].content[0].content",
        [user({"type": "tool_result", "tool_use_id": "x", "content": 3})],
    ),
    (
        "messages[0].content[0].content[0].type",
        [user({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "tool_use"}]})],
    ),
    (
        "messages[0].content[0].is_error",
        [user({"type": "tool_result", "tool_use_id": "x", "is_error": "yes"})],
    ),
    (
        "messages[0].content[0].input",
        [[{"role": "assistant", "content": [
            {"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}]],
    ),
    (
        "messages[0].content[0].name",
        [[{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "input": {}}]}]],
    ),
    (
        "messages[0].content[0].id",
        [[{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]],
    ),
    ("tools", [{}, "x", [TOOL, TOOL]]),
    ("tools[0]", [["x"]]),
    ("tools[0].type", [[{"type": 3}], [{"type": "bash_20250124", "name": "bash"}]]),
    ("tools[0].name", [[{"input_schema": {}}], [TOOL | {"name": "a b"}]]),
    ("tools[0].input_schema", [[{"name": "f"}], [{"name": "f", "input_schema": "x"}]]),
    ("tools[0].strict", [[TOOL | {"strict": "yes"}]]),
    (
        "tools[0].allowed_domains",
        [[{"type": "web_search_20250305", "allowed_domains": ["a.example"] * 101}]],
    ),
    ("tool_choice", ["auto", 3]),
    ("tool_choice.type", [{}, {"type": "some"}, {"type": "any"}, {"type": "tool", "name": "f"}]),
    ("tool_choice.disable_parallel_tool_use", [{"type": "auto", "disable_parallel_tool_use": 1}]),
    ("output_config", ["x"]),
    ("output_config.effort", [{"effort": "extreme"}]),
    ("output_config.format.type", [{"format": {}}, {"format": {"type": "text"}}]),
    ("output_config.format.schema", [{"format": {"type": "json_schema"}}]),
    ("output_format.type", [{}, {"type": "text"}]),
    ("output_format.schema", [{"type": "json_schema"}]),
    ("container", ["container_1", 3]),
    ("container.skills[0].type", [{"skills": [{"type": "anthropic", "skill_id": "pdf"}]}]),
    ("container.skills[0].skill_id", [{"skills": [{"type": "custom"}]}]),
    (
        "container.skills[0].version",
        [{"skills": [{"skill_id": "x", "version": v}]} for v in ("x", 0, -1, "0", 1.5, [])],
    ),
    ("enable_code_execution", ["x"]),
    ("session_id", [3, "x" * 257]),
    ("agent_permission", ["maybe", "ask"]),
    ("code_execution_permission", ["maybe", "ask"]),
    ("files", ["x", [{"name": "x"}] * 65]),
    ("files[0].name", [[{}], [{"name": 3}], [{"name": ".."}]]),
    ("web_search_options", ["x"]),
    ("web_search_options.search_context_size", [{"search_context_size": "huge"}]),
    ("web_search_options.search_content_types[0]", [{"search_content_types": ["image"]}]),
    ("web_search_options.image_settings", [{"image_settings": {}}]),
    ("web_search_options.external_web_access", [{"external_web_access": False}]),
    (
        "web_search_options.filters.blocked_domains",
        [{"filters": {"blocked_domains": ["a.example"] * 101}}],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG for value in values]
)
def test_wrong_field_is_refused_by_name(field: str, value: Any) -> None:
    top = field.split(".")[0].split("[")[0]
    error = refused(**{top: value})
    assert error.field == field and error.status == 400


def test_choice_names_a_tool_that_there_is() -> None:
    choice = {"type": "tool", "name": "g"}
    assert refused(tools=[TOOL], tool_choice=choice).field == "tool_choice.name"


def test_contradictions_are_refused() -> None:
    assert refused(thinking={"type": "enabled"}, enable_thinking=False)
    assert refused(thinking={"type": "disabled"}, reasoning_effort="high")
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    grammar = {"type": "regex", "value": "a+"}
    assert refused(output_config=form, grammar=grammar).field == "output_config.format"
    assert refused(output_format=form["format"], grammar=grammar).field == "output_format"
    assert refused(output_config=form, output_format=form["format"]).field == "output_format"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [
    "text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking",
    "server_tool_use", "search_result", "container_upload", "custom", "web_search_1",
    "code_execution_1", "auto", "any", "tool", "none", "enabled", "adaptive", "base64", "url",
    "file", "content", "json_schema", "approximate", "user", "assistant",
]  # fmt: skip
INNER = [
    "type", "text", "source", "data", "url", "media_type", "file_id", "id", "name", "input",
    "tool_use_id", "content", "is_error", "thinking", "title", "context", "role", "skills",
    "skill_id", "version", "input_schema", "user_location", "format", "schema", "effort", "filters",
]  # fmt: skip
SHAPED = st.recursive(
    JSON | st.sampled_from(KINDS) | st.sampled_from(["aGk=", "https://a.example", "data:,x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(INNER), inner, max_size=5)
        | st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional={"source": inner})
        | st.fixed_dictionaries({"role": st.sampled_from(KINDS), "content": inner})
    ),
    max_leaves=20,
)
FIELDS = sorted({field.split(".")[0].split("[")[0] for field, _ in WRONG})


@given(st.dictionaries(st.sampled_from(FIELDS), SHAPED, max_size=6))
def test_any_json_is_decoded_or_refused(fields: dict[str, Any]) -> None:
    try:
        got = request(**fields)
    except InvalidRequest as error:
        assert error.message
    else:
        assert got.messages


@given(SHAPED)
def test_any_messages_are_decoded_or_refused(messages: Any) -> None:
    try:
        got = request(messages=messages)
    except InvalidRequest as error:
        assert error.field is None or error.field.startswith("messages")
    else:
        assert got.messages


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode(body)
