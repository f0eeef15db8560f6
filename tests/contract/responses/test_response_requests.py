"""Fields of a Responses API request, in the order of the specification's table."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api.codecs.responses import decode
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Constraint,
    FunctionTool,
    Limits,
    Message,
    PythonTool,
    ReasoningPolicy,
    RequestedFile,
    SearchTool,
    ShellTool,
    Text,
    ToolPolicy,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FLAT = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
NESTED = {"type": "function", "function": {"name": "g", "parameters": SCHEMA}}
SEARCH = {"type": "web_search"}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
SHELL = {"type": "shell", "environment": {"type": "container_auto"}}


def asked(**fields):
    return decode(json.dumps({"input": "hi"} | fields).encode())


def request(**fields):
    return asked(**fields).request


def test_row_input_is_required():
    with pytest.raises(InvalidRequest) as caught:
        decode(b"{}")
    assert (caught.value.field, caught.value.code) == ("input", "missing_required_parameter")
    assert request().messages == (Message("user", (Text("hi"),)),)


def test_row_model():
    assert request(model="m").model == "m" and request().model is None


def test_row_instructions():
    assert asked(instructions="x").instructions == "x"
    assert asked(instructions=None).instructions is None


def test_row_previous_response_id():
    assert asked(previous_response_id="resp_1").previous_id == "resp_1"
    assert asked(previous_response_id=None).previous_id is None


@pytest.mark.parametrize("name", ["max_output_tokens", "max_tokens", "max_completion_tokens"])
def test_row_max_output_tokens_has_two_aliases(name):
    whole = asked(**{name: 5})
    assert whole.request.limits == Limits(5) and whole.echoed["max_output_tokens"] == 5
    assert asked(**({"max_output_tokens": 5} | {name: 5})).request.limits == Limits(5)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 2, 0.7, None]),
        ("top_p", [0, 1, None]),
        ("frequency_penalty", [-2, 2, None]),
        ("presence_penalty", [-2.0, 2.0, None]),
        ("min_p", [0, 1, None]),
        ("repetition_penalty", [0.1, 2, None]),
        ("dry_multiplier", [0, 1.5, None]),
        ("dry_base", [1, 2, None]),
        ("dry_allowed_length", [0, 3, None]),
        ("top_k", [1, 40]),
    ],
)
def test_rows_of_sampling(field, values):
    for value in values:
        assert getattr(request(**{field: value}).sampling, field) == value


def test_row_dry_sequence_breakers():
    assert request(dry_sequence_breakers=["\n"]).sampling.dry_sequence_breakers == ("\n",)


def test_row_logit_bias():
    assert request(logit_bias={"7": -100}).sampling.logit_bias == {7: -100.0}


def test_row_stop():
    assert request(stop="a").stop == ("a",) and request(stop=["a", "b"]).stop == ("a", "b")


def test_row_stream():
    assert asked(stream=True).stream and not asked(stream=None).stream


def test_row_stream_options_are_accepted():
    asked(stream_options={"include_usage": True})
    asked(stream_options={"include_obfuscation": False})
    asked(stream_options=None)


def test_row_n():
    assert request(n=3).n == 3 and request().n == 1


def test_rows_logprobs_and_top_logprobs():
    assert request().top_logprobs is None
    assert request(logprobs=True).top_logprobs == 0
    assert request(logprobs=True, top_logprobs=20).top_logprobs == 20
    assert request(top_logprobs=2).top_logprobs == 2
    assert request(include=["message.output_text.logprobs"]).top_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"text": {"format": {"type": "text"}}}, None),
        ({"text": {}}, None),
        ({"text": {"format": None, "verbosity": "low"}}, None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            Constraint("json_schema", "{}", closed=True),
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}},
            Constraint("json_schema", "{}", closed=True),
        ),
        (
            {"text": {"format": {"type": "json_schema", "schema": {}, "strict": False}}},
            Constraint("json_schema", "{}", False, closed=True),
        ),
        ({"grammar": {"type": "regex", "value": "a+"}}, Constraint("regex", "a+")),
    ],
)
def test_rows_response_format_text_and_grammar(fields, wanted):
    assert request(**fields).constraint == wanted


def test_row_tools_flat_and_nested():
    tools = request(tools=[FLAT, NESTED]).tools
    assert tools == (FunctionTool("f", None, SCHEMA, True), FunctionTool("g", None, SCHEMA))
    assert request(tools=None).tools == ()


def test_row_tools_of_the_server():
    assert request(tools=[FLAT, SEARCH, PYTHON, SHELL]).hosted == (
        SearchTool(),
        PythonTool(),
        ShellTool(),
    )
    assert request(tools=[{"type": "web_search_preview"}]).hosted == (SearchTool(),)


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, ToolPolicy()),
        ("auto", ToolPolicy()),
        ("none", ToolPolicy("none")),
        ("required", ToolPolicy("required")),
        ({"type": "function", "name": "f"}, ToolPolicy("required", ("f",))),
        ({"type": "function", "function": {"name": "g"}}, ToolPolicy("required", ("g",))),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolPolicy("auto", ("f",)),
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            ToolPolicy("required", ("f",)),
        ),
    ],
)
def test_row_tool_choice(choice, wanted):
    assert request(tools=[FLAT, NESTED], tool_choice=choice).tool_policy == wanted


def test_row_tool_choice_required_is_satisfied_by_a_tool_of_the_server():
    assert request(tools=[SEARCH], tool_choice="required").tool_policy.mode == "required"


def test_row_parallel_tool_calls_may_be_true():
    assert asked(parallel_tool_calls=True).echoed["parallel_tool_calls"] is True


def test_calls_of_no_tools_need_not_be_parallel():
    """A coding agent sends this to have a long conversation summarized."""
    echoed = asked(tools=[], parallel_tool_calls=False).echoed
    assert echoed["parallel_tool_calls"] is False
    for tools in (None, [FLAT]):
        with pytest.raises(InvalidRequest, match="parallel_tool_calls"):
            asked(tools=tools, parallel_tool_calls=False)


def test_row_metadata_of_sixteen_pairs():
    pairs = {str(i): "x" for i in range(16)}
    assert asked(metadata=pairs).echoed["metadata"] == pairs


def test_rows_store_and_background():
    assert asked().store and not asked(store=False).store
    assert asked(background=True).background and not asked().background


def test_row_include():
    asked(
        include=[
            "file_search_call.results",
            "message.input_image.image_url",
            "computer_call_output.output.image_url",
            "reasoning.encrypted_content",
        ]
    )


@pytest.mark.parametrize(
    ("reasoning", "wanted"),
    [
        (None, ReasoningPolicy()),
        ({}, ReasoningPolicy()),
        ({"effort": None, "summary": "auto"}, ReasoningPolicy()),
        ({"effort": "off"}, ReasoningPolicy(False)),
        ({"effort": "none"}, ReasoningPolicy(False)),
        ({"effort": "minimal"}, ReasoningPolicy(True, "low")),
        ({"effort": "low", "summary": "concise"}, ReasoningPolicy(True, "low")),
        ({"effort": "medium", "summary": "detailed"}, ReasoningPolicy(True, "medium")),
        ({"effort": "high"}, ReasoningPolicy(True, "high")),
        ({"effort": "xhigh"}, ReasoningPolicy(True, "xhigh")),
        ({"effort": "max"}, ReasoningPolicy(True, "xhigh")),
    ],
)
def test_row_reasoning(reasoning, wanted):
    assert request(reasoning=reasoning).reasoning == wanted


def test_row_truncation():
    assert request(truncation="auto").limits.truncate
    assert not request(truncation="disabled").limits.truncate
    assert not request(truncation=None).limits.truncate


def test_rows_ignore_eos_adapter_files_and_rounds():
    assert request(ignore_eos=True).ignore_eos
    assert request(adapter="a").adapter == "a"
    assert request(files=[{"name": "a.csv", "format": "csv"}]).files == (
        RequestedFile("a.csv", "csv"),
    )
    assert request(max_tool_rounds=3).limits.max_rounds == 3


@pytest.mark.parametrize(
    "field",
    [
        "enable_thinking",
        "reasoning_effort",
        "truncate_sequence",
        "session_id",
        "agent_permission",
        "code_execution_permission",
        "web_search_options",
        "seed",
        "user",
        "service_tier",
        "prompt_cache_key",
        "safety_identifier",
        "some_field_of_tomorrow",
    ],
)
@pytest.mark.parametrize("value", [True, 3, "x", [], {"a": 1}, None])
def test_ignored_fields_take_any_type(field, value):
    assert request(**{field: value}).limits == Limits()
    assert request(**{field: value}).reasoning == ReasoningPolicy()


REFUSED = [
    ("max_output_tokens", [0, -1, 1.5, "10", 10**30]),
    ("max_tokens", [0, "x"]),
    ("max_completion_tokens", [0, "x"]),
    ("temperature", [-0.1, 2.1, "1", True]),
    ("top_p", [-0.1, 1.01]),
    ("frequency_penalty", [-2.1, 2.1]),
    ("presence_penalty", [-2.1, 2.1]),
    ("min_p", [-1, 2]),
    ("top_k", [-2, 1.5]),
    ("repetition_penalty", [0, -1]),
    ("dry_multiplier", [-1]),
    ("dry_base", [0.5]),
    ("dry_allowed_length", [-1]),
    ("dry_sequence_breakers", ["x"]),
    ("logit_bias", [[], {"a": 1}]),
    ("stop", ["", 3, ["x"] * 65]),
    ("stream", ["true", 1]),
    ("stream_options", ["x", 3]),
    ("stream_options.include_usage", [{"include_usage": "x"}]),
    ("n", [0, 129, "2"]),
    ("logprobs", [1, "true"]),
    ("top_logprobs", [-1, 21]),
    ("model", [3, []]),
    ("instructions", [3, []]),
    ("previous_response_id", ["", 3]),
    ("parallel_tool_calls", [False, "x"]),
    ("max_tool_calls", [0, 1, 99, "x", False]),
    ("metadata", ["x", [], {str(i): "x" for i in range(17)}]),
    ("store", ["x", 1]),
    ("background", ["x", 1]),
    ("include", ["x", 3]),
    ("include[0]", [["everything"], [3]]),
    ("include[1]", [["reasoning.encrypted_content", "web"]]),
    ("reasoning", ["low", 3]),
    ("reasoning.effort", [{"effort": "huge"}, {"effort": 3}]),
    ("reasoning.summary", [{"summary": "long"}]),
    ("truncation", ["always", 3, {}]),
    ("ignore_eos", ["x"]),
    ("max_tool_rounds", [-1, "x"]),
    ("files", [{}, "x"]),
    ("files[0].name", [[{}], [{"name": 3}]]),
    ("adapter", [3, ""]),
    ("adapter.generation", [{}, {"generation": "abc"}]),
    ("grammar.type", [{"type": "bnf"}]),
    ("response_format.type", [{"type": "json_object"}, {}]),
    ("text", ["x", []]),
    ("text.format", [{"format": "json"}]),
    ("text.format.type", [{"format": {}}, {"format": {"type": "json_object"}}]),
    ("text.format.schema", [{"format": {"type": "json_schema", "name": "a"}}]),
    ("tools", ["x", {}, [FLAT, FLAT]]),
    ("tools[0].type", [[{}], [{"type": "file_search"}], [{"type": "mcp"}]]),
    ("tools[0].name", [[{"type": "function"}], [{"type": "function", "name": "a b"}]]),
    ("tools[0].function.name", [[{"type": "function", "function": {}}]]),
    ("tools[0].container", [[{"type": "code_interpreter", "container": "cntr_1"}]]),
    ("tools[0].external_web_access", [[SEARCH | {"external_web_access": False}]]),
    ("tool_choice", ["maybe", 3, "required"]),
    ("tool_choice.type", [{"type": "mcp"}, {"type": "web_search_preview"}, {"type": "shell"}]),
    ("tool_choice.type", [{"type": "code_interpreter"}, {}]),
    ("tool_choice.name", [{"type": "function", "name": "unknown"}]),
    ("conversation", ["conv_1", {"id": "conv_1"}]),
    ("prompt", [{"id": "pmpt_1"}]),
]


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in REFUSED for value in values]
)
def test_refused_values_are_named(field, value):
    key = field.split(".")[0].split("[")[0]
    with pytest.raises(InvalidRequest) as caught:
        asked(**{key: value})
    assert caught.value.field == field and caught.value.status == 400
    assert f"`{field}`" in caught.value.message


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("background", {"background": True, "store": False}),
        ("top_logprobs", {"logprobs": False, "top_logprobs": 2}),
        ("max_tokens", {"max_output_tokens": 3, "max_tokens": 4}),
        (
            "text.format",
            {
                "response_format": {"type": "json_schema", "json_schema": {"schema": {}}},
                "text": {"format": {"type": "json_schema", "schema": {}}},
            },
        ),
        (
            "grammar",
            {
                "grammar": {"type": "regex", "value": "a"},
                "text": {"format": {"type": "json_schema", "schema": {}}},
            },
        ),
        (
            "tool_choice.tools[0].type",
            {
                "tools": [FLAT, SEARCH],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "web_search"}],
                },
            },
        ),
    ],
)
def test_fields_that_contradict_each_other(field, fields):
    with pytest.raises(InvalidRequest) as caught:
        asked(**fields)
    assert caught.value.field == field


FIELDS = [field for field, _ in REFUSED if field.isidentifier()] + ["input"]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
NAMES = st.sampled_from(
    ["type", "role", "content", "text", "id", "call_id", "name", "arguments", "output", "format",
     "function", "tools", "mode", "container", "environment", "skills", "schema", "annotations"]
)  # fmt: skip
WORDS = st.sampled_from(
    ["message", "user", "assistant", "function_call", "function_call_output", "reasoning",
     "item_reference", "input_text", "input_image", "input_file", "input_audio", "function",
     "json_schema", "allowed_tools", "web_search", "code_interpreter", "shell", "auto", "msg_1"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner),
    max_leaves=25,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS) | st.text(), VALUES, max_size=6)


@given(BODIES | VALUES)
@example({"input": [{"type": "reasoning", "content": [], "summary": []}]})
def test_arbitrary_json_is_decoded_or_refused(body):
    try:
        decoded = decode(json.dumps(body).encode())
    except InvalidRequest as error:
        assert error.message and len(error.message) < 2000
    else:
        assert decoded.request.messages is not None
