"""Fields that clients of vLLM, llama.cpp and SGLang send in addition to those of OpenAI and
Anthropic."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from penstock.api.codecs.chat import decode as decode_chat
from penstock.api.codecs.completions import decode as decode_completions
from penstock.api.codecs.messages import decode as decode_messages
from penstock.api.codecs.responses import decode as decode_responses
from penstock.dialog import Constraint, GenerateRequest, Message, Text
from tests.support.request_decoder import RequestDecoder
from tests.support.scripted_engine import INFO
from tests.support.servers.http_server import MODEL, serving

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
DIALECTS: list[tuple[Callable[[bytes], Any], dict[str, Any]]] = [
    (decode_chat, HELLO),
    (decode_completions, {"prompt": "hi"}),
    (decode_messages, HELLO),
    (decode_responses, {"input": "hi"}),
]
RIVER = {
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "length_km": {"title": "Length Km", "type": "integer"},
    },
    "required": ["name", "length_km"],
    "title": "River",
    "type": "object",
}
SCHEMA = Constraint("json_schema", json.dumps(RIVER, separators=(",", ":")), closed=True)


HELLO_CHAT = RequestDecoder(decode_chat, HELLO)
request, refused = HELLO_CHAT.request, HELLO_CHAT.refused


@pytest.mark.parametrize(("decode", "body"), DIALECTS)
def test_every_dialect_accepts_cache_salt(decode: Any, body: dict[str, Any]) -> None:
    for given, salt in (
        ({"cache_salt": "tenant é"}, "tenant é"),
        ({"cache_salt": None}, ""),
        ({}, ""),
    ):
        got: GenerateRequest = decode(json.dumps(body | given).encode()).request
        assert got.cache_salt == salt


@pytest.mark.parametrize("salt", ["", "s" * 257, 5, ["s"]])
def test_invalid_cache_salt_is_rejected(salt: Any) -> None:
    assert refused(cache_salt=salt).field == "cache_salt"


def test_load_generators_get_answers_of_fixed_length() -> None:
    """The fields of `vllm bench serve --ignore-eos`, GuideLLM, and AIPerf with extra inputs."""
    completions = (
        b'{"model": "default", "prompt": "Infrared Treating carts", "repetition_penalty": 1.0,'
        b' "max_tokens": 32, "logprobs": null, "stream": true,'
        b' "stream_options": {"include_usage": true}, "ignore_eos": true}'
    )
    got = decode_completions(completions).request
    assert got.ignore_eos and got.limits.max_tokens == 32 and got.top_logprobs is None
    usage = {"include_usage": True, "continuous_usage_stats": True}
    chat = request(
        max_completion_tokens=32,
        stream=True,
        stream_options=usage,
        ignore_eos=True,
        min_tokens=32,
    )
    assert chat.ignore_eos and chat.limits.max_tokens == chat.limits.min_tokens == 32


@pytest.mark.parametrize(("decode", "body"), DIALECTS)
def test_every_dialect_accepts_stop_fields(decode: Any, body: dict[str, Any]) -> None:
    fields = {"min_tokens": 3, "stop_token_ids": [7, 9], "guided_regex": "a+"}
    got: GenerateRequest = decode(json.dumps(body | fields).encode()).request
    assert got.limits.min_tokens == 3 and got.stop_token_ids == (7, 9)
    assert got.constraint == Constraint("regex", "a+")
    plain: GenerateRequest = decode(json.dumps(body).encode()).request
    assert plain.limits.min_tokens == 0 and plain.stop_token_ids == ()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": "3"}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_token_ids": [3, "x"]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [3] * 65}, "stop_token_ids"),
    ],
)
def test_invalid_stop_fields_are_rejected(fields: dict[str, Any], field: str) -> None:
    assert refused(**fields).field == field


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"json": RIVER}, SCHEMA),
        ({"json": json.dumps(RIVER)}, SCHEMA),
        ({"regex": "[0-9]{3}"}, Constraint("regex", "[0-9]{3}")),
        ({"grammar": 'start: "a" | "b"'}, Constraint("lark", 'start: "a" | "b"')),
        ({"grammar": 'start: "a ::= b"'}, Constraint("lark", 'start: "a ::= b"')),
        ({"grammar": '\n  root ::= "a"'}, Constraint("gbnf", '\n  root ::= "a"')),
        ({"json": None, "regex": "a", "whitespace_pattern": "x"}, Constraint("regex", "a")),
        ({"json_object": False}, None),
        ({}, None),
    ],
)
def test_structured_outputs_constrain_the_answer(
    asked: dict[str, Any], expected: Constraint | None
) -> None:
    """The fields that outlines sends to vLLM, and the older fields with the same meaning."""
    assert request(structured_outputs=asked).constraint == expected
    older = {f"guided_{key}": value for key, value in asked.items()}
    assert request(**older).constraint == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"json_schema": RIVER}, SCHEMA),
        ({"json_schema": json.dumps(RIVER)}, SCHEMA),
        ({"regex": "[0-9]{3}"}, Constraint("regex", "[0-9]{3}")),
        ({"ebnf": 'root ::= "a"'}, Constraint("gbnf", 'root ::= "a"')),
        ({"json_schema": None, "regex": None, "ebnf": None}, None),
    ],
)
def test_fields_of_llama_cpp_and_sglang_constrain_the_answer(
    asked: dict[str, Any], expected: Constraint | None
) -> None:
    assert request(**asked).constraint == expected


def test_constraint_fields_exclude_each_other() -> None:
    assert refused(regex="a", ebnf='root ::= "a"').field == "ebnf"
    assert refused(regex=3).field == "regex"
    assert refused(json_schema="{").field == "json_schema"


@pytest.mark.parametrize(("decode", "body"), DIALECTS)
def test_repeat_penalty_is_the_repetition_penalty(decode: Any, body: dict[str, Any]) -> None:
    got: GenerateRequest = decode(json.dumps(body | {"repeat_penalty": 1.1}).encode()).request
    assert got.sampling.repetition_penalty == 1.1
    assert request(repeat_penalty=1.2, repetition_penalty=1.2).sampling.repetition_penalty == 1.2
    assert refused(repeat_penalty=1.2, repetition_penalty=1.1).field == "repeat_penalty"
    assert refused(repeat_penalty=0).field == "repeat_penalty"


def test_choice_is_one_of_the_strings() -> None:
    choices = ["yes", "no (never)", "a|b", "1.5", "[x]", "tab\t-~#&", "ü", "\\d+"]
    got = request(structured_outputs={"choice": choices}).constraint
    assert got is not None and got.kind == "regex"
    for choice in choices:
        assert re.fullmatch(got.value, choice)
    assert not any(re.fullmatch(got.value, other) for other in ("a", "1x5", "x", "7", "never"))


@pytest.mark.parametrize(
    ("asked", "field", "code"),
    [
        ({"json": "{"}, "json", "invalid_value"),
        ({"json": 3}, "json", "invalid_type"),
        ({"regex": 3}, "regex", "invalid_type"),
        ({"choice": []}, "choice", "invalid_value"),
        ({"choice": ["a", ""]}, "choice[1]", "invalid_value"),
        ({"choice": "a"}, "choice", "invalid_type"),
        ({"grammar": 3}, "grammar", "invalid_type"),
        ({"json_object": True}, "json_object", "unsupported_value"),
        ({"structural_tag": "{}"}, "structural_tag", "unsupported_value"),
        ({"json": RIVER, "regex": "a"}, "regex", "invalid_value"),
    ],
)
def test_invalid_structured_outputs_are_rejected(
    asked: dict[str, Any], field: str, code: str
) -> None:
    error = refused(structured_outputs=asked)
    assert error.code == code and error.field is not None
    assert error.field.removeprefix("structured_outputs.") == field


def test_structured_outputs_exclude_other_constraints() -> None:
    grammar = {"type": "regex", "value": "a"}
    assert refused(structured_outputs={"regex": "a"}, grammar=grammar).field is not None
    assert refused(structured_outputs=3).field == "structured_outputs"


def test_old_and_new_constraint_fields_may_agree() -> None:
    """guidance sends both, for older and newer servers."""
    grammar = "%llguidance {}\n\nstart: x\nx[capture]: X\nX: /[0-9]{4}/\n"
    got = request(
        guided_decoding_backend="guidance",
        guided_grammar=grammar,
        structured_outputs={"grammar": grammar},
    )
    assert got.constraint == Constraint("lark", grammar)
    assert refused(structured_outputs={"regex": "a"}, guided_regex="b").field == "guided_regex"


def test_final_message_is_continued_on_request() -> None:
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The answer is"}]
    got = request(messages=talk, add_generation_prompt=False, continue_final_message=True)
    assert (
        got.messages == (Message("user", (Text("hi"),)),) and got.answer_prefix == "The answer is"
    )
    assert got.reasoning.enabled is False
    kept = request(messages=talk, add_generation_prompt=False)
    assert kept.answer_prefix == "" and kept.messages is not None and len(kept.messages) == 2


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "hi"}],
        [{"role": "assistant", "content": "alone"}],
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}],
        "a templated prompt",
    ],
)
def test_continuation_needs_a_final_assistant_message(messages: Any) -> None:
    error = refused(messages=messages, continue_final_message=True)
    assert error.field == "continue_final_message"


async def test_cards_have_the_context_length() -> None:
    async with serving() as server:
        cards = (await server.http.get("/v1/models")).json()["data"]
        assert [card["max_model_len"] for card in cards] == [INFO.max_model_len] * 2
        await server.http.post("/v1/models/unload", json={"model_id": MODEL})
        assert (await server.http.get(f"/v1/models/{MODEL}")).json()["max_model_len"] is None
