"""Errors raised behind the codecs name fields as the clients of each dialect write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, RunFailed
from tests.support.servers.http_server import Step, serving
from tests.support.servers.responses_server import answering, failing, get

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
OWN = {"grammar": {"type": "json_schema", "value": {"type": "object"}}}
NESTED = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
PARAMETERS = "tools[0].function.parameters"

NAMES: list[tuple[str, dict[str, Any], str, str]] = [
    (CHAT, NESTED, "response_format", "response_format"),
    (CHAT, OWN, "response_format", "grammar"),
    (CHAT, {"messages": "hi"}, "prompt", "messages"),
    (CHAT, {"tools": [PYTHON, {"type": "function", "function": FUNCTION}]}, PARAMETERS,
     "tools[1].function.parameters"),
    (CHAT, {"tools": [{"type": "function", **FUNCTION}]}, PARAMETERS, "tools[0].parameters"),
    (CHAT, {"tools": [{"type": "function", **FUNCTION}]}, "grammar", "tools"),
    (CHAT, {"functions": [FUNCTION]}, PARAMETERS, "functions[0].parameters"),
    (CHAT, {"functions": [FUNCTION]}, "tool_choice", "function_call"),
    (CHAT, {"stop": ["a"]}, "stop[0]", "stop[0]"),
    (COMPLETIONS, OWN, "response_format", "grammar"),
    (COMPLETIONS, {"logprobs": 1}, "top_logprobs", "logprobs"),
    (RESPONSES, {"text": {"format": {**SCHEMA, "name": "a"}}}, "response_format", "text.format"),
    (RESPONSES, NESTED, "response_format", "response_format"),
    (RESPONSES, {"tools": [PYTHON, {"type": "function", **FUNCTION}]}, PARAMETERS,
     "tools[1].parameters"),
    (RESPONSES, {"tools": [PYTHON, {"type": "function", "function": FUNCTION}]}, PARAMETERS,
     "tools[1].function.parameters"),
    (RESPONSES, {}, "messages", "input"),
    (RESPONSES, {}, "messages[3]", "input"),
    (MESSAGES, {"stop_sequences": ["a"]}, "stop[0]", "stop_sequences[0]"),
    (MESSAGES, {"output_config": {"format": SCHEMA}}, "response_format", "output_config.format"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {}}]}, PARAMETERS, "tools[0].input_schema"),
]  # fmt: skip


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "hi"}]},
        COMPLETIONS: {"prompt": "hi"},
        RESPONSES: {"input": "hi"},
        MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8},
    }
    return given[path] | fields


def refusal(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is not good", field=field)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize(("path", "fields", "field", "written"), NAMES)
async def test_errors_name_the_field_as_the_client_wrote_it(
    path: str, fields: dict[str, Any], field: str, written: str, raised: bool, streamed: bool
) -> None:
    def refused(request: GenerateRequest) -> Iterator[Step]:
        error = refusal(field)
        if raised:
            yield error
        yield RunFailed(error.status, error.kind, error.code, error.message, error.field)

    body = body_of(path, fields) | {"stream": streamed}
    async with answering(refused) as server:
        answer = await server.http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (400, f"{written} is not good")
    if path != MESSAGES:
        assert error["param"] == written


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
async def test_field_is_prepended_to_messages_that_lack_it(path: str, raised: bool) -> None:
    """Some clients read only the message, and Anthropic's envelope has no field."""
    error = InvalidRequest("a schema of no kind", field="response_format")

    def refused(request: GenerateRequest) -> Iterator[Step]:
        if raised:
            yield error
        yield RunFailed(error.status, error.kind, error.code, error.message, error.field)

    async with answering(refused) as server:
        answer = await server.http.post(path, json=body_of(path, OWN))
    assert answer.json()["error"]["message"] == "grammar: a schema of no kind"


@pytest.mark.parametrize("message", ["n must be less", "`n` is wrong", "no: n", "so large an n[0]"])
def test_message_that_names_its_field_is_unchanged(message: str) -> None:
    assert FieldPaths().rewrite_failure(RunFailed(400, "", "", message, "n")).message == message


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_only_request_errors_get_a_field(status: int) -> None:
    failed = RunFailed(status, "", "", "not there", "model")
    assert FieldPaths().rewrite_failure(failed) is failed


async def test_error_of_a_too_complex_grammar_names_its_field() -> None:
    failed = RunFailed(400, "invalid_request_error", "grammar_too_complex", "too much", "grammar")
    async with answering(failing(failed)) as server:
        answer = await server.http.post(CHAT, json=body_of(CHAT, NESTED) | {"stream": True})
    assert "response_format: too much" in answer.text


@pytest.mark.parametrize("raised", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "field", "written"),
    [
        (CHAT, OWN, "response_format", "grammar"),
        (RESPONSES, {}, "messages", "input"),
        (MESSAGES, {}, "stop[0]", "stop_sequences[0]"),
    ],
)
async def test_errors_in_streams_name_the_field_as_the_client_wrote_it(
    path: str, fields: dict[str, Any], field: str, written: str, raised: bool
) -> None:
    error = refusal(field)
    failed = RunFailed(error.status, error.kind, error.code, error.message, error.field)
    async with answering(failing(error if raised else failed)) as server:
        answer = await server.http.post(path, json=body_of(path, fields) | {"stream": True})
    assert answer.status_code == 200
    told = json.dumps(f"{written} is not good")
    assert told in answer.text and field not in answer.text.replace(written, "")


async def test_failed_background_responses_name_the_field_as_the_client_wrote_it() -> None:
    async with answering(failing(refusal("messages"))) as server:
        body = {"input": "hi", "background": True}
        id = (await server.http.post(RESPONSES, json=body)).json()["id"]
        while (found := await get(server, id))["error"] is None:
            await asyncio.sleep(0)
    assert found["error"]["message"] == "input is not good"


def test_only_whole_names_in_messages_are_rewritten() -> None:
    names = FieldPaths()
    names.note("stop", "stop_sequences")

    def told(message: str) -> str:
        return names.rewrite_failure(RunFailed(400, "", "", message, "stop")).message

    assert told("stop is long") == "stop_sequences is long"
    assert told("a `stop` is long") == "a `stop_sequences` is long"
    assert told("stopping does not stop") == "stop_sequences: stopping does not stop"


async def test_error_without_a_field_is_unchanged() -> None:
    async with serving(lambda _: [InvalidRequest("stop it")]) as server:
        answer = await server.http.post(MESSAGES, json=body_of(MESSAGES, {}))
    assert answer.json()["error"]["message"] == "stop it"
