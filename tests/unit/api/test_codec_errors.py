"""Every field that is out of range or of the wrong type is a 400 that names it; nothing else is."""

from __future__ import annotations

import gc
import gzip
import json
import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.chat import decode as decode_chat
from penstock.api.codecs.completions import decode as decode_completions
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.codecs.request_fields.json_body import (
    MAX_CONTAINERS,
    MAX_NAMES,
    MAX_VALUES,
    parse_object,
)
from penstock.base.errors import InvalidRequest
from penstock.dialog import Message, Reasoning, Text, ToolCall, ToolPolicy, ToolResult

MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}
PROMPT = {"prompt": "hi"}
DECODERS = [(decode_chat, MESSAGES), (decode_completions, PROMPT)]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields):
    return decode_chat(json.dumps(MESSAGES | fields).encode())


def completion(**fields):
    return decode_completions(json.dumps(PROMPT | fields).encode())


def deep(levels):
    value = {}
    for _ in range(levels):
        value = {"items": value}
    return value


# (field that the error names, value sent instead)
BOTH = [
    ("temperature", [-0.1, 2.1, "1", True, [], {}, 1e300, 10**40]),
    ("top_p", [-0.1, 1.01, "x", False]),
    ("min_p", [-1, 2, "0.1"]),
    ("top_k", [-2, 1.5, "40", True, 10**30]),
    ("presence_penalty", [-2.1, 2.1, "0"]),
    ("frequency_penalty", [-3, 3, None.__class__.__name__]),
    ("repetition_penalty", [0, -1, "1.1", True]),
    ("dry_multiplier", [-1, "x"]),
    ("dry_base", [0.5, []]),
    ("dry_allowed_length", [-1, 1.5]),
    ("dry_sequence_breakers", ["x", 3, ["\n"] * 65, "[", '["a" "b"]', str([1] * 65)]),
    ("dry_sequence_breakers[1]", [["a", 3], ["a", ""], '["a", 3]', '["a", ""]']),
    ("n", [0, 129, -1, 1.5, "2", True]),
    ("max_tokens", [0, -1, 1.5, "10", 10**30]),
    ("max_completion_tokens", [0, "x"]),
    ("stop", ["", 3, {}, ["x"] * 65]),
    ("stop[1]", [["a", ""], ["a", 3], ["a", None]]),
    ("stream", ["true", 1, []]),
    ("ignore_eos", ["yes", 0]),
    ("truncate_sequence", ["auto", 1]),
    ("model", [3, [], {}]),
    ("logit_bias", [[], "x", {"a": 1}, {"-1": 1}, {"1.5": 1}, {"99999999999": 1}, {"²": 1}]),
    ("logit_bias.7", [{"7": "x"}, {"7": 101}, {"7": -101}, {"7": None}, {"7": True}]),
    ("adapter", [3, [], ""]),
    ("adapter.generation", [{}, {"generation": 3}, {"generation": "abc"}]),
    ("grammar", ["x", [], 3]),
    ("grammar.type", [{}, {"type": 3}, {"type": "bnf"}]),
    ("grammar.value", [{"type": "regex"}, {"type": "lark", "value": 3}]),
    ("grammar.value", [{"type": "json_schema", "value": v} for v in (None, "x", deep(65))]),
    ("grammar.value.grammars", [{"type": "llguidance", "value": {}}]),
    ("response_format", ["json", 3]),
    ("response_format.type", [{}, {"type": "json_object"}, {"type": "xml"}]),
    ("response_format.json_schema", [{"type": "json_schema"}]),
    (
        "response_format.json_schema.schema",
        [{"type": "json_schema", "json_schema": {"schema": s}} for s in (None, "x", deep(65))],
    ),
]
CHAT_ONLY = [
    ("logprobs", [1, "true", 0]),
    ("top_logprobs", [-1, 21, "5", 3]),
    ("messages", [3, {}, [], "", None]),
    ("messages[0]", [["hi"], [None], [[]]]),
    ("messages[0].role", [[{}], [{"role": 3}], [{"role": "robot"}]]),
    ("messages[0].name", [[{"role": "user", "name": 3}]]),
    ("messages[0].content", [[{"role": "user", "content": value}] for value in (3, {}, True)]),
    *(
        ("messages[0].content", [[{"role": role} | content]])
        for role in ("user", "system", "developer", "tool")
        for content in ({}, {"content": None})
    ),
    ("messages[0].content[0]", [[{"role": "user", "content": ["hi"]}]]),
    (
        "messages[0].content[1].type",
        [
            [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
            for part in (
                {},
                {"type": 3},
                {"type": "file_url", "file_url": {"url": "https://a.example/x"}},
                {"type": "nonsense"},
            )
        ],
    ),
    (
        "messages[0].content[0].text",
        [[{"role": "user", "content": [{"type": "text", **part}]}] for part in ({}, {"text": 3})],
    ),
    ("messages[0].tool_call_id", [[{"role": "tool", "content": "x"}]]),
    ("messages[0].tool_calls", [[{"role": "assistant", "tool_calls": {}}]]),
    ("messages[0].tool_calls[0].function", [[{"role": "assistant", "tool_calls": [{}]}]]),
    (
        "messages[0].tool_calls[0].function.name",
        [[{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]],
    ),
    (
        "messages[0].tool_calls[0].function.arguments",
        [[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}]],
    ),
    ("tools", [{}, "x", [TOOL, TOOL]]),
    ("tools[0]", [["x"]]),
    (
        "tools[0].type",
        [[{}], [{"type": "web_search"}], [{"type": "shell"}], [{"type": "namespace"}]],
    ),
    ("tools[0].name", [[{"type": "function"}], [{"type": "function", "name": "a b"}]]),
    (
        "tools[0].function.parameters",
        [
            [{"type": "function", "function": {"name": "f", "parameters": p}}]
            for p in ("x", deep(65))
        ],
    ),
    ("tool_choice", ["some", 3, [], "required"]),
    ("tool_choice.type", [{}, {"type": "code_interpreter"}, {"type": "any"}]),
    ("tool_choice.name", [{"type": "function"}, {"type": "function", "name": "g"}]),
    ("tool_choice.function.name", [{"type": "function", "function": {"name": "g"}}]),
    ("tool_choice.mode", [{"type": "allowed_tools", "tools": []}]),
    ("tool_choice.tools", [{"type": "allowed_tools", "mode": "auto", "tools": []}]),
    ("enable_thinking", ["yes", 1]),
    ("reasoning_effort", ["extreme", 3]),
    ("chat_template_kwargs", ["x"]),
    ("chat_template_kwargs.enable_thinking", [{"enable_thinking": 3}]),
    ("web_search_options", ["low", 3]),
    ("session_id", [3, [], "x" * 257, "a\nb"]),
    ("files", ["a.csv", {"name": "a.csv"}, [{"name": "x"}] * 65]),
    ("agent_permission", ["maybe", "ask", 3]),
    ("max_tool_rounds", [-1, "x"]),
]
COMPLETIONS_ONLY = [
    ("logprobs", [-1, 21, True, "1"]),
    ("prompt", [None, [], 3, {}]),
    ("prompt[0]", [[[]], [None], [1.5], [{}]]),
    ("prompt[1]", [[1, "a"], [1, -1], [1, 2**31], [1, True]]),
    ("prompt[0][1]", [[[1, "a"]]]),
    ("prompt[1]", [["a", 2], ["a", {}], [[1], []]]),
    ("best_of", [0, "x"]),
    ("suffix", [3]),
    ("echo", ["yes", 1]),
]


def cases(table):
    return [(field, value) for field, values in table for value in values]


def refused_field(decode, base, field, value):
    top = field.split(".")[0].split("[")[0]
    with pytest.raises(InvalidRequest) as caught:
        decode(json.dumps(base | {top: value}).encode())
    assert caught.value.status == 400
    assert f"`{caught.value.field}`" in caught.value.message
    return caught.value.field


@pytest.mark.parametrize(("field", "value"), cases(BOTH))
@pytest.mark.parametrize(("decode", "base"), DECODERS)
def test_wrong_field_is_refused_by_name(decode, base, field, value):
    assert refused_field(decode, base, field, value) == field


@pytest.mark.parametrize(("field", "value"), cases(CHAT_ONLY))
def test_wrong_chat_field_is_refused_by_name(field, value):
    assert refused_field(decode_chat, MESSAGES, field, value) == field


@pytest.mark.parametrize(("field", "value"), cases(COMPLETIONS_ONLY))
def test_wrong_completion_field_is_refused_by_name(field, value):
    assert refused_field(decode_completions, PROMPT, field, value) == field


@pytest.mark.parametrize("value", [None, True, 3, -0.5, "x", [], [1], {}, {"a": [None]}])
@pytest.mark.parametrize(("decode", "base"), DECODERS)
def test_ignored_fields_take_any_type(decode, base, value):
    names = ("seed", "user", "stream_options", "metadata", "service_tier", "store")
    ignored = dict.fromkeys((*names, "parallel_tool_calls", "never_heard_of"), value)
    plain = decode(json.dumps(base).encode())
    decoded = decode(json.dumps(base | ignored).encode())
    if type(value) is not int:
        assert decoded == plain


@pytest.mark.parametrize(("decode", "base"), DECODERS)
def test_null_means_not_given(decode, base):
    names = [field for field, _ in BOTH if "." not in field and "[" not in field]
    names.remove("top_k")  # null disables it
    nulls = dict.fromkeys(names)
    assert decode(json.dumps(base | nulls).encode()) == decode(json.dumps(base).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELD_NAMES = sorted(
    {field.split(".")[0].split("[")[0] for field, _ in BOTH + CHAT_ONLY + COMPLETIONS_ONLY}
)


@given(st.dictionaries(st.sampled_from(FIELD_NAMES), JSON, max_size=6))
def test_any_json_is_decoded_or_refused_by_name(fields):
    for decode, base in DECODERS:
        try:
            request = decode(json.dumps(base | fields).encode()).request
        except InvalidRequest as error:
            assert error.message
        else:
            sampling = request.sampling
            numbers = (sampling.temperature, sampling.top_p, sampling.repetition_penalty)
            assert all(value is None or math.isfinite(value) for value in numbers)


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(body):
    for decode, _ in DECODERS:
        with suppress(InvalidRequest):  # some random bytes are a valid request
            assert decode(body).request


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nul",
        b'"text"',
        b"[]",
        b"\xff\xfe",
        b'{"messages": "\xff"}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"messages": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"a":' + b"9" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize(("decode", "base"), DECODERS)
def test_malformed_bodies_are_invalid_json(decode, base, body):
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    assert caught.value.code == "invalid_json"


def test_a_compressed_body_is_refused_with_a_hint():
    with pytest.raises(InvalidRequest, match="compressed") as caught:
        parse_object(gzip.compress(b"{}"))
    assert caught.value.code == "invalid_json"


def test_every_parameter_reaches_the_request():
    decoded = chat(
        model="m",
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        min_p=0.05,
        seed=7,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"5": -100},
        dry_multiplier=0.8,
        dry_base=1.75,
        dry_allowed_length=2,
        dry_sequence_breakers=["\n"],
        max_completion_tokens=9,
        max_tool_rounds=2,
        truncate_sequence=True,
        stop="END",
        n=2,
        logprobs=True,
        top_logprobs=3,
        ignore_eos=True,
        stream=True,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        reasoning_effort=" HIGH ",
        adapter="style",
    )
    request, sampling = decoded.request, decoded.request.sampling
    assert decoded.stream and request.model == "m" and request.n == 2
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (
        0.5,
        40,
        0.9,
        0.05,
    )
    assert (sampling.seed, sampling.logit_bias) == (7, {5: -100.0})
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.dry_multiplier, sampling.dry_base) == (
        1.1,
        0.8,
        1.75,
    )
    assert (sampling.dry_allowed_length, sampling.dry_sequence_breakers) == (2, ("\n",))
    assert (request.limits.max_tokens, request.limits.max_rounds, request.limits.truncate) == (
        9,
        2,
        True,
    )
    assert (request.stop, request.top_logprobs, request.ignore_eos) == (("END",), 3, True)
    assert request.tools[0].name == "f" and request.tools[0].parameters == {"type": "object"}
    assert request.tool_policy == ToolPolicy("required", ("f",))
    assert request.constraint is not None and request.constraint.value == '{"type":"object"}'
    assert (request.reasoning.enabled, request.reasoning.effort) == (True, "high")
    assert request.adapter == "style"


def test_messages_become_the_dialogs_messages():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42", "name": "f"},
    ]
    assert chat(messages=messages).request.messages == (
        Message("system", (Text("be brief"),)),
        Message("user", (Text("a"), Text("b"))),
        Message("assistant", (Reasoning("hm"), ToolCall("c1", "f", "{}"))),
        Message("tool", (ToolResult("c1", "42", "f"),), "f"),
    )


def test_messages_as_a_string_are_a_templated_prompt():
    request = chat(messages="<|im_start|>user").request
    assert request.prompt == "<|im_start|>user" and request.messages is None


@pytest.mark.parametrize("off", [0, -1, None])
def test_top_k_can_be_switched_off(off):
    assert chat(top_k=off).request.sampling.top_k == 0
    assert chat().request.sampling.top_k is None


def test_logprobs_without_alternatives_cover_the_sampled_token():
    assert chat(logprobs=True).request.top_logprobs == 0
    assert chat(logprobs=False, top_logprobs=0).request.top_logprobs is None
    assert completion(logprobs=0).request.top_logprobs == 0


def test_grammar_and_response_format_exclude_each_other():
    schema = {"type": "json_schema", "json_schema": {"schema": {}}}
    with pytest.raises(InvalidRequest, match="response_format"):
        chat(grammar={"type": "regex", "value": "a+"}, response_format=schema)
    assert chat(grammar={"type": "regex", "value": "a+"}, response_format={"type": "text"})


@pytest.mark.parametrize(
    ("fields", "enabled", "effort"),
    [
        ({}, None, None),
        ({"enable_thinking": None}, None, None),
        ({"enable_thinking": True}, True, None),
        ({"enable_thinking": False}, False, None),
        ({"reasoning_effort": "none"}, False, None),
        ({"reasoning_effort": "max"}, True, "xhigh"),
        ({"chat_template_kwargs": {"enable_thinking": False, "other": 3}}, False, None),
    ],
)
def test_thinking_is_tri_state(fields, enabled, effort):
    reasoning = chat(**fields).request.reasoning
    assert (reasoning.enabled, reasoning.effort) == (enabled, effort)


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True, "reasoning_effort": "off"},
        {"enable_thinking": False, "reasoning_effort": "low"},
    ],
)
def test_contradicting_thinking_fields_are_refused(fields):
    with pytest.raises(InvalidRequest, match="contradicts"):
        chat(**fields)


def test_allowed_tools_restrict_to_a_subset():
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "f"}],
    }
    assert chat(tools=[TOOL], tool_choice=choice).request.tool_policy == ToolPolicy(
        "required", ("f",)
    )


def test_alias_of_max_tokens_must_agree():
    assert chat(max_tokens=5, max_completion_tokens=5).request.limits.max_tokens == 5
    with pytest.raises(InvalidRequest) as caught:
        chat(max_tokens=5, max_completion_tokens=6)
    assert caught.value.field == "max_completion_tokens"


@pytest.mark.parametrize("container", [b"[]", b"{}"])
def test_body_of_too_many_containers_is_refused(container):
    fits = b'{"x": [%b]}' % b",".join([container] * (MAX_CONTAINERS - 2))
    assert len(parse_object(fits)["x"]) == MAX_CONTAINERS - 2
    with pytest.raises(InvalidRequest, match="arrays and objects"):
        parse_object(fits[:-1] + b', "y": []}')


def test_body_of_too_many_values_is_refused():
    fits = b'{"x": [%b]}' % b",".join([b"0"] * MAX_VALUES)
    assert len(parse_object(fits)["x"]) == MAX_VALUES
    for more in (b', "y": 0, "z": 0}', b', "y": [%b]}' % b",".join([b'""'] * 4 * MAX_VALUES)):
        with pytest.raises(InvalidRequest, match="values"):
            parse_object(fits[:-1] + more)


def test_body_of_too_many_names_is_refused():
    fits = b'{"x": {%b}}' % b",".join([b'"a": 1'] * (MAX_NAMES - 1))
    assert parse_object(fits)["x"] == {"a": 1}
    with pytest.raises(InvalidRequest, match="names"):
        parse_object(fits[:-1] + b', "y": 1}')


@pytest.mark.parametrize("text", ["[{", '"[', '\\"[', "\\\\{", ":,,,,", '",:'])
def test_json_punctuation_inside_strings_is_not_counted(text):
    sent = {"x": text * MAX_CONTAINERS, text: [{}]}
    assert parse_object(json.dumps(sent).encode()) == sent


def test_garbage_collection_is_paused_for_a_body_of_many_containers():
    body = b'{"x": [%b]}' % b",".join([b"[]"] * 100_000)
    passes = []

    def note(phase, _):
        passes.append(phase)

    gc.collect()
    gc.callbacks.append(note)
    try:
        kept = decode_body(body, dict[str, Any])["x"]
        assert passes.count("start") <= 2  # once the body is complete
        assert gc.isenabled() and len(kept) == 100_000
    finally:
        gc.callbacks.remove(note)


@pytest.mark.parametrize("decode, base", DECODERS)
def test_integer_with_a_zero_fraction_is_an_integer(decode, base):
    body = json.dumps(base | {"max_tokens": 3.0, "n": 2.0, "top_k": 40.0}).encode()
    request = decode(body).request
    assert (request.limits.max_tokens, request.n, request.sampling.top_k) == (3, 2, 40)
    assert type(request.limits.max_tokens) is int


@pytest.mark.parametrize("value", [1e30, 10**30, 2**63])
def test_error_of_a_too_large_integer_states_the_range(value):
    with pytest.raises(InvalidRequest, match=f"integer from 1 to {2**63 - 1}, not") as refused:
        chat(max_tokens=value)
    assert refused.value.code == "invalid_value"
