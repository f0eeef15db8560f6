"""`input` of a Responses API request as messages of the dialog."""

from __future__ import annotations

import base64
import json

import pytest

from penstock.api.codecs.responses import continue_conversation, decode, resolve_item_references
from penstock.api.codecs.responses.item_ids import item_id, response_of
from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import Audio, File, Image, Message, Reasoning, Text, ToolCall, ToolResult

PNG = base64.b64encode(b"picture").decode()


def messages(items, known=None, **fields):
    body = json.dumps({"input": items} | fields).encode()
    return resolve_item_references(decode(body), known or {}).request.messages


def said(**fields):
    """Return a user message with one text part."""
    return user({"type": "input_text", "text": "x"} | fields)


def file(**fields):
    return user({"type": "input_file"} | fields)


def user(*parts):
    return [{"role": "user", "content": list(parts)}]


def test_a_string_is_a_user_message():
    assert messages("hi") == (Message("user", (Text("hi"),)),)


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
@pytest.mark.parametrize("typed", [{}, {"type": "message"}])
def test_messages_of_every_role_with_or_without_a_type(role, typed):
    assert messages([{"role": role, "content": "x"} | typed]) == (Message(role, (Text("x"),)),)


CITATION = {
    "type": "file_citation",
    "file_citation": {"file_id": "file-1", "quote": "q"},
    "start_index": 0,
    "end_index": 1,
    "text": "x",
}
IMAGE = {"type": "input_image"}
OPENAI_CITATION = {"type": "file_citation", "file_id": "f", "filename": "a.txt", "index": 0}


@pytest.mark.parametrize(
    ("part", "wanted"),
    [
        ({"type": "input_text", "text": "x"}, Text("x")),
        ({"type": "input_text", "text": "x", "annotations": [CITATION]}, Text("x")),
        ({"type": "output_text", "text": "x", "annotations": [OPENAI_CITATION]}, Text("x")),
        ({"type": "text", "text": "x"}, Text("x")),
        ({"type": "refusal", "refusal": "no"}, Text("no")),
        (
            {"type": "input_image", "image_url": "https://a.example/b.png", "detail": "low"},
            Image(url="https://a.example/b.png"),
        ),
        (
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            Image(data=b"picture", mime_type="image/png"),
        ),
        ({"type": "input_image", "image_data": PNG}, Image(data=b"picture")),
        ({"type": "input_image", "file_id": "file-1"}, File(file_id="file-1")),
        (
            {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            Image(url="https://a.example/b.png"),
        ),
        (
            {"type": "input_audio", "data": PNG, "format": "wav"},
            Audio(data=b"picture", mime_type="audio/wav"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": PNG, "format": "mp3"}},
            Audio(data=b"picture", mime_type="audio/mp3"),
        ),
        ({"type": "input_file", "file_id": "file-1"}, File(file_id="file-1")),
        (
            {"type": "input_file", "filename": "a.txt", "file_data": PNG},
            File(name="a.txt", data=b"picture"),
        ),
        (
            {
                "type": "input_file",
                "filename": "a.txt",
                "file_data": f"data:text/plain;base64,{PNG}",
            },
            File(name="a.txt", data=b"picture", mime_type="text/plain"),
        ),
        (
            {"type": "input_file", "file_url": "https://a.example/a.pdf"},
            File(url="https://a.example/a.pdf"),
        ),
    ],
)
def test_content_parts(part, wanted):
    assert messages(user(part)) == (Message("user", (wanted,)),)


def test_assistant_items_of_one_turn_become_one_message():
    items = [
        {"role": "user", "content": "weather?"},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "call_2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        {
            "type": "function_call_output",
            "call_id": "call_2",
            "output": [{"type": "input_text", "text": "wind"}],
        },
        {"role": "assistant", "content": "Rain."},
        {"role": "assistant", "content": "And wind."},
    ]  # fmt: skip
    turn = (Reasoning("hm"), Text("I look."), ToolCall("call_1", "f", "{}"))
    assert messages(items) == (
        Message("user", (Text("weather?"),)),
        Message("assistant", (*turn, ToolCall("call_2", "g", "{}"))),
        Message("tool", (ToolResult("call_1", "rain"),)),
        Message("tool", (ToolResult("call_2", "wind"),)),
        Message("assistant", (Text("Rain."),)),
        Message("assistant", (Text("And wind."),)),
    )


def test_a_summary_replaces_hidden_reasoning():
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "brief"}]}
    assert messages([item, {"role": "user", "content": "y"}])[0].parts == (Reasoning("brief"),)


def test_encrypted_reasoning_alone_is_dropped():
    item = {"type": "reasoning", "summary": [], "encrypted_content": "abc"}
    assert messages([item, {"role": "user", "content": "y"}]) == (Message("user", (Text("y"),)),)


@pytest.mark.parametrize("kind", ["web_search_call", "compaction", "custom_tool_call_output"])
def test_items_of_openais_hosted_tools_are_skipped(kind):
    items = [{"type": kind, "id": "x", "output": {"any": 1}}, {"role": "user", "content": "y"}]
    assert messages(items) == (Message("user", (Text("y"),)),)
    with pytest.raises(InvalidRequest, match="says nothing"):
        messages(items[:1])


def call_of(item):
    """Return (call, result) of one item of a server tool."""
    assistant, tool = messages([item])
    (call,), (result,) = assistant.parts, tool.parts
    assert (assistant.role, tool.role, result.call_id) == ("assistant", "tool", call.id)
    assert result.name == call.name
    return call, result


def test_shell_output_of_openais_own_form_becomes_a_result():
    call = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}
    outcome = {"type": "exit", "exit_code": 2}
    chunks = [
        {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}},
        {"stdout": "b", "stderr": "no", "outcome": outcome},
    ]
    output = {"type": "shell_call_output", "call_id": "c1", "output": chunks}
    assistant, tool = messages([call, output])
    assert assistant.parts == (ToolCall("c1", "service_shell", '{"commands":["ls"]}'),)
    (result,) = tool.parts
    assert json.loads(result.text) == {
        "status": "error", "stdout": "ab", "stderr": "no", "exit_code": 2, "timed_out": False,
    }  # fmt: skip


def test_shell_output_in_entries_with_a_type_becomes_a_result():
    entries = [
        {"type": "stdout", "text": "a"},
        {"type": "stderr", "text": "no"},
        {"type": "outcome", "status": "timeout", "timed_out": True},
    ]
    output = {"type": "shell_call_output", "call_id": "c1", "output": entries}
    (tool,) = messages([output])
    (result,) = tool.parts
    assert json.loads(result.text) == {
        "status": "timeout", "stdout": "a", "stderr": "no", "exit_code": None, "timed_out": True,
    }  # fmt: skip


def test_python_call_without_outputs_and_id_becomes_a_call_with_a_result():
    call, result = call_of({"type": "code_interpreter_call", "code": "1", "outputs": None})
    assert (call.name, call.arguments) == ("service_execute_python", '{"code":"1"}')
    assert json.loads(result.text) == {"status": "success"} and not result.is_error


def test_failed_mcp_call_becomes_an_error():
    error = {"type": "http_error", "code": 500, "message": "down"}
    item = {"type": "mcp_call", "id": "m1", "name": "f", "arguments": "{}", "error": error}
    call, result = call_of(item)
    assert call == ToolCall("m1", "f", "{}")
    assert json.loads(result.text) == {"error": error} and result.is_error


@pytest.mark.parametrize(
    ("action", "name", "arguments"),
    [
        ({"type": "search", "query": "x"}, "service_search_the_web", '{"query":"x"}'),
        ({"type": "search", "queries": ["x", "y"]}, "service_search_the_web", '{"query":"x; y"}'),
        (
            {"type": "open_page", "url": "https://a.example"},
            "service_website_content_extractor",
            '{"url":"https://a.example"}',
        ),
    ],
)
def test_web_calls_become_the_two_web_tools(action, name, arguments):
    call, _ = call_of({"type": "web_search_call", "id": "ws_1", "action": action})
    assert call == ToolCall("ws_1", name, arguments)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "input[0].call_id"),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": "ls"}},
         "input[0].action.commands"),
        ({"type": "shell_call_output", "call_id": "c", "output": "x"}, "input[0].output"),
        ({"type": "code_interpreter_call", "code": 3}, "input[0].code"),
        ({"type": "mcp_call", "arguments": "{}"}, "input[0].name"),
    ],
)  # fmt: skip
def test_malformed_items_of_server_tools_are_refused_by_field(item, field):
    with pytest.raises(InvalidRequest) as caught:
        messages([item])
    assert caught.value.field == field


def test_results_get_the_names_of_their_calls_from_any_turn():
    earlier = (Message("assistant", (ToolCall("call_1", "f", "{}"),)),)
    turn = messages([{"type": "function_call_output", "call_id": "call_1", "output": "rain"}])
    assert continue_conversation(earlier, turn)[-1].parts == (ToolResult("call_1", "rain", "f"),)


def test_a_reference_resolves_to_its_item():
    response = new_id("resp_")
    id = item_id("msg_", response, 3)
    items = [{"type": "item_reference", "id": id}, {"role": "user", "content": "and?"}]
    body = json.dumps({"input": items}).encode()
    assert decode(body).references == (id,) and response_of(id) == response
    stored = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "a"}]}
    assert messages(items, {id: stored}) == (
        Message("assistant", (Text("a"),)),
        Message("user", (Text("and?"),)),
    )
    assert decode(json.dumps({"input": [{"id": id}]}).encode()).references == (id,)


@pytest.mark.parametrize("id", ["msg_1", "resp_" + "0" * 32, "msg_" + "g" * 36, ""])
def test_other_ids_belong_to_no_response(id):
    assert response_of(id) is None


def test_instructions_are_kept_apart():
    asked = decode(json.dumps({"input": "hi", "instructions": "be brief"}).encode())
    assert asked.instructions == "be brief"
    assert asked.request.messages == (Message("user", (Text("hi"),)),)


@pytest.mark.parametrize(
    ("field", "items"),
    [
        ("input", None),
        ("input", ""),
        ("input", []),
        ("input", 3),
        ("input", {}),
        ("input[0]", ["hi"]),
        ("input[0].type", [{"type": "no_such_call"}]),
        ("input[0].type", [{"type": 3}]),
        ("input[0].role", [{}]),
        ("input[0].role", [{"role": "tool", "content": "x"}]),
        ("input[0].role", [{"role": 3, "content": "x"}]),
        ("input[0].content", [{"role": "user"}]),
        ("input[0].content", [{"role": "user", "content": 3}]),
        ("input[0].content[0]", [{"role": "user", "content": ["x"]}]),
        ("input[0].content[0].type", user({})),
        ("input[0].content[0].type", user({"type": "input_video"})),
        ("input[0].content[0].text", user({"type": "input_text"})),
        ("input[0].content[0].annotations", said(annotations=3)),
        (
            "input[0].content[0].annotations[0].file_citation.file_id",
            said(annotations=[CITATION | {"file_citation": {}}]),
        ),
        (
            "input[0].content[0].annotations[0].start_index",
            said(annotations=[CITATION | {"start_index": -1}]),
        ),
        ("input[0].content[0].image_url", user({"type": "input_image"})),
        ("input[0].content[0].image_url", user(IMAGE | {"image_url": "file:///a"})),
        ("input[0].content[0].detail", user(IMAGE | {"file_id": "f", "detail": "x"})),
        ("input[0].content[0].file_id", user({"type": "input_file"})),
        ("input[0].content[0].file_data", file(filename="a", file_data="%")),
        ("input[0].content[0].file_url", file(file_url="ftp://a.example/b")),
        ("input[0].content[0].file_url", file(file_id="f", file_url="https://a")),
        ("input[0].content[0].format", user({"type": "input_audio", "data": PNG})),
        ("input[0].call_id", [{"type": "function_call", "name": "f", "arguments": "{}"}]),
        ("input[0].name", [{"type": "function_call", "call_id": "c", "arguments": "{}"}]),
        ("input[0].arguments", [{"type": "function_call", "call_id": "c", "name": "f"}]),
        ("input[0].call_id", [{"type": "function_call_output", "output": "x"}]),
        ("input[0].output", [{"type": "function_call_output", "call_id": "c"}]),
        ("input[0].content[0].text", [{"type": "reasoning", "content": [{}]}]),
        ("input[0].id", [{"type": "item_reference"}]),
    ],
)  # fmt: skip
def test_errors_of_items_name_the_field(field, items):
    with pytest.raises(InvalidRequest) as caught:
        messages(items)
    assert caught.value.field == field


def test_an_image_part_without_an_image_names_the_fields_that_may_hold_it():
    with pytest.raises(InvalidRequest) as caught:
        messages([{"role": "user", "content": [{"type": "input_image"}]}])
    assert str(caught.value) == (
        "`input[0].content[0].image_url` is required, or one of `image_data`, `file_id`"
    )
    assert caught.value.code == "missing_required_parameter"
