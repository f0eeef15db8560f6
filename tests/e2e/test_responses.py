"""The Responses API with the official client and the default model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import openai
import pydantic
import pytest

from tests.e2e.conftest import RunningServer

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 30}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}
CHOICE: Any = {"type": "function", "name": "get_weather"}


class River(pydantic.BaseModel):
    """A schema with bounds, so that any sampled value ends within the requested tokens."""

    name: str = pydantic.Field(max_length=20)
    length_km: int = pydantic.Field(ge=1, le=9999)


def client_of(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return client_of(server)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"input": "Name three rivers.", "max_output_tokens": 24, "temperature": 0} | fields
    return client.responses.create(model="default", **fields)


def wait_for(client: openai.OpenAI, id: str, *statuses: str) -> Any:
    while (response := client.responses.retrieve(id)).status not in statuses:
        time.sleep(0.02)
    return response


def test_a_stream_is_the_unstreamed_answer_and_can_be_fetched(client: openai.OpenAI) -> None:
    whole = ask(client)
    events = list(ask(client, stream=True))
    last = events[-1].response
    assert whole.output_text == last.output_text
    assert whole.output_text == "".join(
        event.delta for event in events if event.type == "response.output_text.delta"
    )
    assert (last.status, events[-1].type) == ("incomplete", "response.incomplete")
    assert last.usage.output_tokens == 24
    assert client.responses.retrieve(last.id).output_text == whole.output_text


def test_a_chain_equals_its_conversation(client: openai.OpenAI) -> None:
    first = ask(client)
    second = ask(client, input="Which is longest?", previous_response_id=first.id)
    said = [
        {"role": "user", "content": "Name three rivers."},
        *first.output,
        {"role": "user", "content": "Which is longest?"},
    ]
    assert ask(client, input=said).output_text == second.output_text
    assert second.usage.input_tokens > first.usage.input_tokens


def test_parsed_answers_match_their_schema(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model="default", input="A river in Asia?", text_format=River, max_output_tokens=200
    )
    assert isinstance(answer.output_parsed, River)


def test_a_function_is_called_and_its_result_used(client: openai.OpenAI) -> None:
    fields = {"tools": [TOOL], "tool_choice": CHOICE, "max_output_tokens": 80}
    asked = ask(client, input="Weather in Rome?", **fields)
    (call,) = (item for item in asked.output if item.type == "function_call")
    jsonschema.validate(json.loads(call.arguments), PARAMETERS)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answer = ask(client, input=[result], previous_response_id=asked.id, tools=[TOOL])
    assert answer.output and answer.usage.input_tokens > asked.usage.input_tokens


def test_logprobs_come_with_their_alternatives(client: openai.OpenAI) -> None:
    fields = {"top_logprobs": 2, "extra_body": {"ignore_eos": True}}
    answer = ask(client, include=["message.output_text.logprobs"], **fields)
    tokens = answer.output[0].content[0].logprobs
    assert len(tokens) == 24 and all(len(token.top_logprobs) == 2 for token in tokens)
    assert "".join(token.token for token in tokens) == answer.output_text


def test_a_background_response_is_cancelled_at_once(client: openai.OpenAI) -> None:
    made = ask(client, background=True, max_output_tokens=8000, extra_body={"ignore_eos": True})
    assert made.status == "queued"
    wait_for(client, made.id, "in_progress")
    stopped = client.responses.cancel(made.id)
    assert (stopped.status, client.responses.cancel(made.id).status) == ("cancelled", "cancelled")


@pytest.mark.slow
def test_a_chain_continues_after_a_restart_until_the_context_is_full(
    start_server: Callable[..., RunningServer], tmp_path: Any
) -> None:
    options = ("--store", f"sqlite:///{tmp_path}/store.db", "--blobs", str(tmp_path / "blobs"))
    before = start_server(*options)
    first = ask(client_of(before))
    before.stop()
    client = client_of(start_server(*options, "--context", "256"))
    chained = ask(client, input="Which?", previous_response_id=first.id)
    assert chained.previous_response_id == first.id
    assert chained.usage.input_tokens > first.usage.input_tokens
    more: dict[str, Any] = {"input": "more " * 200, "previous_response_id": chained.id}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **more)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert 200 < ask(client, truncation="auto", **more).usage.input_tokens < 256


@pytest.mark.slow
def test_any_process_cancels_a_response_of_another(
    start_server: Callable[..., RunningServer],
) -> None:
    """Each client has its own connection, which either process may have accepted."""
    server = start_server("--workers", "2")
    for _ in range(4):
        made = ask(
            client_of(server), background=True, max_output_tokens=8000,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        wait_for(client_of(server), made.id, "in_progress")
        assert client_of(server).responses.cancel(made.id).status == "cancelled"
    with httpx.Client(base_url=server.url) as plain:
        while "service_sequences_running 0.0" not in plain.get("/metrics").text:
            time.sleep(0.02)
