"""Tool calls of a real model over several turns, through the official OpenAI client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.conftest import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.weights]

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 30},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Tells the time in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}},
            "required": ["city"],
        },
    },
}
QUESTION: dict[str, Any] = {
    "role": "user",
    "content": "What is the weather in Paris now? Use celsius.",
}


class Booking(BaseModel):
    """Books a table."""

    restaurant: str = Field(max_length=30)
    guests: int = Field(ge=1, le=20)
    outside: bool


@pytest.fixture(scope="module")
def qwen(weights_dir: Path) -> Iterator[RunningServer]:
    path = next(iter(weights_dir.glob("qwen15b/*.gguf")), None)
    if path is None:
        pytest.skip("needs qwen15b/*.gguf in --weights-dir")
    running = RunningServer(str(path), "--context", "4096", "--max-seqs", "4")
    yield running
    running.stop()


@pytest.fixture
def client(qwen: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=qwen.url + "/v1", api_key="any", max_retries=0)


def ask(client: openai.OpenAI, *messages: Any, **fields: Any) -> Any:
    fields = {"tools": [WEATHER, TIME], "temperature": 0, "max_tokens": 200} | fields
    return client.chat.completions.create(model="default", messages=list(messages), **fields)


def test_conversation_with_calls_and_results(client: openai.OpenAI) -> None:
    first = ask(client, QUESTION).choices[0]
    assert first.finish_reason == "tool_calls"
    (call,) = first.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris", "unit": "celsius"}
    turns = [
        QUESTION,
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 31, "sky": "clear"}'},
    ]
    # This model keeps calling while it sees functions, so the turn that answers shows it none.
    second = ask(client, *turns, tool_choice="none").choices[0]
    assert second.finish_reason == "stop"
    assert "31" in second.message.content
    more = {"role": "user", "content": "And what time is it in Tokyo?"}
    answer = {"role": "assistant", "content": second.message.content}
    third = ask(client, *turns, answer, more, tool_choice="required", max_tokens=60).choices[0]
    called = third.message.tool_calls[0].function
    assert (called.name, json.loads(called.arguments)) == ("get_time", {"city": "Tokyo"})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_streamed_call_equals_the_unstreamed_call(client: openai.OpenAI, choice: str) -> None:
    fields = {"tool_choice": choice, "max_tokens": 60}
    whole = ask(client, QUESTION, **fields).choices[0].message.tool_calls[0].function
    names, arguments, ids = [], "", []
    for chunk in ask(client, QUESTION, stream=True, **fields):
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.index:
                continue
            ids += [call.id] if call.id else []
            names += [call.function.name] if call.function.name else []
            arguments += call.function.arguments or ""
    assert names == [whole.name] and len(ids) == 1
    assert arguments == whole.arguments


def test_client_library_accumulates_the_streamed_call(client: openai.OpenAI) -> None:
    tool = openai.pydantic_function_tool(Booking)
    with client.chat.completions.stream(
        model="default",
        messages=[{"role": "user", "content": "A table for 4 at Da Mario, in the garden, please."}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "Booking"}},
        temperature=0,
        max_tokens=60,
    ) as stream:
        deltas = [e for e in stream if e.type == "tool_calls.function.arguments.delta"]
        completion = stream.current_completion_snapshot
    assert len(deltas) > 2
    call = completion.choices[0].message.tool_calls[0].function
    assert isinstance(call.parsed_arguments, Booking)
    assert call.parsed_arguments.guests == 4 and call.parsed_arguments.outside


def test_named_function_is_called_for_any_question(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    answer = ask(client, QUESTION, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "get_time" and answer.finish_reason == "tool_calls"


def test_tool_choice_none_makes_no_call(client: openai.OpenAI) -> None:
    answer = ask(client, QUESTION, tool_choice="none", max_tokens=60).choices[0]
    assert answer.message.content and not answer.message.tool_calls


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_time"}],
    }
    calls = ask(client, QUESTION, tool_choice=choice).choices[0].message.tool_calls
    assert {call.function.name for call in calls} == {"get_time"}


def test_strict_function_gets_arguments_that_match_its_schema(client: openai.OpenAI) -> None:
    function = WEATHER["function"] | {"strict": True}
    tools = [{"type": "function", "function": function}]
    for seed in range(4):
        answer = ask(client, QUESTION, tools=tools, temperature=1, seed=seed).choices[0]
        whole = answer.finish_reason == "tool_calls"  # otherwise the last argument may be cut off
        for call in (answer.message.tool_calls or []) if whole else []:
            given = json.loads(call.function.arguments)
            assert given["unit"] in ("celsius", "fahrenheit") and isinstance(given["city"], str)


def test_several_choices_have_calls_with_distinct_ids(client: openai.OpenAI) -> None:
    answer = ask(client, QUESTION, n=3, temperature=0.8, seed=3, tool_choice="required")
    ids = [call.id for choice in answer.choices for call in choice.message.tool_calls]
    assert len(set(ids)) == len(ids) >= 3


def test_fim_fills_a_gap_in_code(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="default",
        prompt="def add(a, b):\n    return ",
        suffix="\n\nprint(add(1, 2))\n",
        max_tokens=24,
        temperature=0,
    )
    assert answer.choices[0].text.strip().startswith("a + b")
    assert answer.choices[0].finish_reason == "stop"
