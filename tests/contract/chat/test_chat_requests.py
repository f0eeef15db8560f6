"""Every row of the specification's chat tables: decoded fields and errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.chat import decode
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Audio,
    File,
    FunctionTool,
    Image,
    Message,
    Permissions,
    PythonTool,
    Reasoning,
    RequestedFile,
    SearchTool,
    ShellTool,
    Text,
    ToolCall,
    ToolPolicy,
    ToolResult,
    Video,
)
from tests.support.request_decoder import RequestDecoder

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
DATA = base64.b64encode(b"abc").decode()
INLINE = f"data:image/png;base64,{DATA}"
FUNCTION = {"name": "f", "description": "does", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
AUTO = {"type": "code_interpreter", "container": {"type": "auto"}}


HELLO_CHAT = RequestDecoder(decode, HELLO)
request, refused = HELLO_CHAT.request, HELLO_CHAT.refused


def parts(*content: Any) -> tuple[Any, ...]:
    (message,) = request(messages=[{"role": "user", "content": list(content)}]).messages or ()
    return message.parts


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, Text("a")),
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/x.png", "detail": 3}},
            Image(url="https://a.example/x.png"),
        ),
        ({"type": "image_url", "image_url": INLINE}, Image(data=b"abc", mime_type="image/png")),
        (
            {"type": "image_url", "image_url": {"url": INLINE}},
            Image(data=b"abc", mime_type="image/png"),
        ),
        (
            {"type": "audio_url", "audio_url": {"url": "http://a.example/x"}},
            Audio(url="http://a.example/x"),
        ),
        (
            {"type": "video_url", "video_url": {"url": "http://a.example/x"}},
            Video(url="http://a.example/x"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
            Audio(data=b"abc", mime_type="audio/wav"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": DATA, "format": "mp3"}},
            Audio(data=b"abc", mime_type="audio/mpeg"),
        ),
        ({"type": "file", "file": {"file_id": "file-1"}}, File(file_id="file-1")),
        (
            {"type": "file", "file": {"filename": "a.csv", "file_data": DATA}},
            File(name="a.csv", data=b"abc"),
        ),
        (
            {"type": "file", "file": {"filename": "/x/a.csv", "file_data": INLINE}},
            File(name="a.csv", data=b"abc", mime_type="image/png"),
        ),
    ],
)
def test_parts_of_users(part: Any, expected: Any) -> None:
    assert parts({"type": "text", "text": "x"}, part) == (Text("x"), expected)


def message(**fields: Any) -> Message:
    """Return the last of two messages."""
    before = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}],
        "function_call": {"name": "g", "arguments": '{"a":1}'},
    }
    messages = request(messages=[before, fields]).messages
    assert messages is not None
    return messages[-1]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"role": "system", "content": "s"}, Message("system", (Text("s"),))),
        ({"role": "developer", "content": "s"}, Message("developer", (Text("s"),))),
        ({"role": "user", "content": "u", "name": "n"}, Message("user", (Text("u"),), "n")),
        ({"role": "user", "content": ""}, Message("user", (Text(""),))),
        ({"role": "assistant", "content": "a"}, Message("assistant", (Text("a"),))),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            Message("assistant", (Text("a"),)),
        ),
        ({"role": "assistant", "refusal": "no"}, Message("assistant", (Text("no"),))),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            Message("assistant", (Text("no"),)),
        ),
        (
            {"role": "assistant", "content": "a", "refusal": None, "audio": {"id": "x"}},
            Message("assistant", (Text("a"),)),
        ),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            Message("assistant", (Reasoning("r"), Text("a"))),
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "r"},
            Message("assistant", (Reasoning("r"), Text("a"))),
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "r"},
            Message("tool", (ToolResult("c1", "r", "f"),)),
        ),
        (
            {"role": "tool", "tool_call_id": "c9", "content": [{"type": "text", "text": "r"}]},
            Message("tool", (ToolResult("c9", "r"),)),
        ),
    ],
)
def test_messages_of_every_role(fields: Any, expected: Message) -> None:
    assert message(**fields) == expected


def test_results_without_ids_answer_the_calls_in_their_order() -> None:
    calls = [{"id": id, "function": {"name": name}} for id, name in (("a", "f"), ("b", "g"))]
    messages = request(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "tool_calls": [*calls, {"function": {"name": "h"}}]},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "3"},
        ]
    ).messages
    assert messages is not None
    _, _, third = messages[1].parts
    assert isinstance(third, ToolCall)
    assert [part for message in messages[2:] for part in message.parts] == [
        ToolResult("b", "2", "g"),
        ToolResult("a", "1", "f"),
        ToolResult(third.id, "3", "h"),
    ]


def test_legacy_result_belongs_to_the_last_call_of_its_function() -> None:
    messages = request(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "function_call": {"name": "g", "arguments": '{"a":1}'}},
            {"role": "function", "name": "g", "content": "r"},
        ]
    ).messages
    assert messages is not None
    (call,) = messages[1].parts
    assert isinstance(call, ToolCall) and (call.name, call.arguments) == ("g", '{"a":1}')
    assert messages[2] == Message("tool", (ToolResult(call.id, "r", "g"),), "g")
    assert message(role="function", name="never called", content=None).parts[0] is not None


@pytest.mark.parametrize(
    ("fields", "policy"),
    [
        ({}, ToolPolicy(parallel=False)),
        ({"function_call": "auto"}, ToolPolicy("auto", (), False)),
        ({"function_call": "none"}, ToolPolicy("none", (), False)),
        ({"function_call": {"name": "f"}}, ToolPolicy("required", ("f",), False)),
    ],
)
def test_legacy_functions_are_tools_called_once(fields: Any, policy: ToolPolicy) -> None:
    got = request(functions=[FUNCTION], **fields)
    assert got.tools == (FunctionTool("f", "does", {"type": "object"}),)
    assert got.tool_policy == policy


@pytest.mark.parametrize(
    ("fields", "hosted"),
    [
        ({"tools": [AUTO]}, (PythonTool(),)),
        ({"tools": [AUTO], "tool_choice": "required"}, (PythonTool(),)),
        ({"enable_shell": True}, (ShellTool(),)),
        ({"enable_shell": False}, ()),
        ({"web_search_options": {}}, (SearchTool(),)),
        (
            {
                "web_search_options": {
                    "search_context_size": "high",
                    "user_location": {"type": "approximate", "approximate": {"city": "Graz"}},
                    "filters": {
                        "allowed_domains": ["a.example"],
                        "blocked_domains": ["b.example"],
                    },
                    "external_web_access": True,
                    "search_content_types": ["text"],
                    "search_description": "finds",
                }
            },
            (SearchTool("high", {"city": "Graz"}, ("a.example",), ("b.example",), "finds"),),
        ),
    ],
)
def test_server_tools_have_their_own_fields(fields: Any, hosted: Any) -> None:
    assert request(**fields).hosted == hosted


def test_extension_fields_reach_the_request() -> None:
    got = decode(
        json.dumps(
            HELLO
            | {
                "stream": True,
                "session_id": "s1",
                "files": [{"name": "a.csv"}, {"name": "b", "format": "md", "description": "d"}],
                "agent_permission": "ask",
                "code_execution_permission": "deny",
                "max_tool_rounds": 3,
                "truncate_sequence": True,
                "reasoning_effort": "minimal",
            }
        ).encode()
    ).request
    assert got.session == "s1" and got.permissions == Permissions("ask", "deny")
    assert got.files == (RequestedFile("a.csv"), RequestedFile("b", "md", "d"))
    assert (got.limits.max_rounds, got.limits.truncate) == (3, True)
    assert got.reasoning.effort == "low"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent_permission", "ask"),
        ("code_execution_permission", "ask"),
        ("agent_permission", "never"),
        ("enable_shell", "yes"),
        ("files", [{"format": "csv"}]),
        ("functions", [{}]),
        ("functions", [FUNCTION, FUNCTION]),
        ("tools", [{"type": "code_interpreter", "container": "container-1"}]),
        ("tools", [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": []}}]),
        ("tools", [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": 1}}]),
        ("tools", [{"type": "web_search_preview"}]),
        ("tools", [{"type": "shell", "environment": {"type": "container_auto"}}]),
        ("tools", [AUTO, AUTO]),
        ("web_search_options", {"search_context_size": "huge"}),
        ("web_search_options", {"external_web_access": False}),
        ("web_search_options", {"search_content_types": ["image"]}),
        ("web_search_options", {"image_settings": {"max_results": 1}}),
        ("web_search_options", {"filters": {"allowed_domains": ["a.example"] * 101}}),
        ("web_search_options", {"user_location": {"type": "exact"}}),
    ],
)
def test_wrong_extension_fields_are_refused(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert error.status == 400 and (error.field or "").startswith(field)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"type": "image_url"}, "image_url"),
        ({"type": "image_url", "image_url": "x"}, "image_url"),
        ({"type": "image_url", "image_url": "file:///etc/passwd"}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,#"}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:image/png"}}, "image_url.url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "video_url", "video_url": {"url": 3}}, "video_url.url"),
        ({"type": "input_audio", "input_audio": {"data": DATA}}, "input_audio.format"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio.data"),
        ({"type": "file", "file": {}}, "file.file_data"),
        ({"type": "file", "file": {"file_data": "#"}}, "file.file_data"),
        ({"type": "file", "file": {"file_data": ""}}, "file.file_data"),
        ({"type": "file", "file": {"file_id": ""}}, "file.file_id"),
        ({"type": "file", "file": {"file_id": "x", "file_data": DATA}}, "file.file_data"),
        ({"type": "file", "file": {"file_url": "https://a.example/x"}}, "file.file_url"),
        ({"type": "file", "file": {"file_data": DATA, "filename": "x" * 256}}, "file.filename"),
        ({"type": "refusal", "refusal": "no"}, "type"),
    ],
)
def test_wrong_parts_are_refused_by_name(content: Any, field: str) -> None:
    error = refused(messages=[{"role": "user", "content": [content]}])
    assert error.field == f"messages[0].content[0].{field}"


@pytest.mark.parametrize("role", ["system", "assistant", "developer"])
def test_media_come_from_users_alone(role: str) -> None:
    error = refused(
        messages=[{"role": role, "content": [{"type": "image_url", "image_url": INLINE}]}]
    )
    assert error.field == "messages[0].content[0].type"


def test_functions_and_tools_exclude_each_other() -> None:
    assert refused(functions=[FUNCTION], tools=[TOOL]).field == "functions"
    choice = {"name": "g"}
    assert refused(functions=[FUNCTION], function_call=choice).field == "function_call.name"
    assert refused(functions=[FUNCTION], function_call=3).field == "function_call"


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "x", [], [1], {}, {"a": [None]}])
def test_ignored_and_unknown_fields_take_any_type(value: Any) -> None:
    names = ("user", "stream_options", "metadata", "service_tier", "parallel_tool_calls", "store")
    others = ("modalities", "audio", "prediction", "verbosity", "prompt_cache_key", "unheard_of")
    assert request(**dict.fromkeys((*names, *others), value)) == request()


def test_parallel_calls_cannot_be_switched_off() -> None:
    assert request(tools=[TOOL], parallel_tool_calls=False).tool_policy.parallel


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = [
    "text", "image_url", "audio_url", "input_audio", "video_url", "file", "refusal", "function",
    "user", "assistant", "tool", "system", "auto", "code_interpreter", "approximate",
]  # fmt: skip
INNER = [
    "type", "text", "image_url", "url", "file", "file_id", "file_data", "filename", "data",
    "format", "role", "content", "name", "tool_calls", "function", "function_call", "arguments",
    "parameters", "tool_call_id", "container", "refusal", "reasoning", "filters",
]  # fmt: skip
SHAPED = st.recursive(
    JSON | st.sampled_from(KINDS) | st.sampled_from([DATA, INLINE, "https://a.example"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(INNER), inner, max_size=5)
        | st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional={"file": inner})
        | st.fixed_dictionaries({"role": st.sampled_from(KINDS), "content": inner})
    ),
    max_leaves=20,
)
FIELDS = [
    "messages", "tools", "tool_choice", "functions", "function_call", "web_search_options",
    "files", "session_id", "agent_permission", "enable_shell", "chat_template_kwargs",
]  # fmt: skip


@given(st.dictionaries(st.sampled_from(FIELDS), SHAPED, max_size=5))
def test_any_json_is_decoded_or_refused(fields: dict[str, Any]) -> None:
    try:
        got = request(**fields)
    except InvalidRequest as error:
        assert error.message
    else:
        assert got.messages or got.prompt


@given(SHAPED)
def test_any_messages_are_decoded_or_refused(messages: Any) -> None:
    try:
        got = request(messages=messages)
    except InvalidRequest as error:
        assert error.field is None or error.field.startswith("messages")
    else:
        assert got.messages or got.prompt
