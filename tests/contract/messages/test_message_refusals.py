"""Errors for invalid Messages requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_decoder import PNG, SCHEMA, TOOL, refused, request, user

from penstock.api.codecs.messages import decode
from penstock.base.errors import InvalidRequest

# field that the error names -> value sent instead of its first step
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
    ("tools[0].input_schema", [[{"name": "f", "input_schema": "x"}]]),
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
