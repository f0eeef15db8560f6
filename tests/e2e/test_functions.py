"""Functions with the default model, whose template knows none: told in words, bound by grammar."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.e2e.conftest import RunningServer

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "A forecast.", "parameters": PARAMETERS},
}
CHOICE: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
QUESTION: dict[str, Any] = {"role": "user", "content": "The weather in Rome for two days?"}


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": [QUESTION], "max_tokens": 80, "tools": [TOOL]} | fields
    return client.chat.completions.create(model="default", **fields)


def test_arguments_are_what_the_schema_allows_at_any_temperature(client: openai.OpenAI) -> None:
    answer = ask(client, tool_choice=CHOICE, temperature=1.5, seed=1, n=8)
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert call.function.name == "get_weather"
        if choice.finish_reason == "tool_calls":
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


def test_a_streamed_call_is_the_unstreamed_one(client: openai.OpenAI) -> None:
    fields = {"tool_choice": CHOICE, "temperature": 0}
    whole = ask(client, **fields).choices[0].message.tool_calls[0].function.arguments
    deltas = [
        call.function.arguments or ""
        for chunk in ask(client, stream=True, **fields)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert len(deltas) > 2 and "".join(deltas) == whole


def test_results_are_taken_though_the_template_knows_none(client: openai.OpenAI) -> None:
    call = ask(client, tool_choice=CHOICE, temperature=0).choices[0].message
    turns = [
        QUESTION,
        call.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "rain"},
    ]
    answer = ask(client, messages=turns, temperature=0)
    assert answer.usage.prompt_tokens > 100 and answer.choices[0].finish_reason


def test_several_prompts_and_the_best_of_several_answers(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "default", "max_tokens": 8, "temperature": 1, "seed": 3}
    prompts = ["The capital of France is", "One, two, three,"]
    answer = client.completions.create(prompt=prompts, n=2, **fields)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None and answer.usage.completion_tokens <= 32
    ranked = client.completions.create(prompt=prompts[0], best_of=4, logprobs=0, **fields)
    every = client.completions.create(prompt=prompts[0], n=4, logprobs=0, **fields)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    assert mean(ranked.choices[0]) == pytest.approx(max(map(mean, every.choices)), abs=1e-6)


def test_a_gap_needs_a_model_that_can_fill_it(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="default", prompt="a", suffix="b")
    assert caught.value.param == "suffix"
