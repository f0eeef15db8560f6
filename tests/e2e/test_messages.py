"""Anthropic's official client against a running server with the real default model."""

from __future__ import annotations

import base64
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import RunningServer

pytestmark = [pytest.mark.slow, pytest.mark.weights]

QUESTION: Any = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Tells the weather in a city now.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def client(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0)


def asked(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    given: Any = {"model": "default", "max_tokens": 24, "messages": QUESTION, "extra_body": GREEDY}
    return client.messages.create(**given | fields)


def total_input(usage: anthropic.types.Usage) -> int:
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_message_has_text_and_as_many_input_tokens_as_were_counted(
    client: anthropic.Anthropic,
) -> None:
    fields: Any = {"messages": QUESTION, "system": "You are brief."}
    counted = client.messages.count_tokens(model="default", **fields)
    message = asked(client, **fields)
    (block,) = message.content
    assert block.type == "text" and block.text
    assert total_input(message.usage) == counted.input_tokens > 10
    assert 0 < message.usage.output_tokens <= 24


def test_streamed_message_is_the_unstreamed_one(client: anthropic.Anthropic) -> None:
    whole = asked(client)
    with client.messages.stream(
        model="default", max_tokens=24, messages=QUESTION, extra_body=GREEDY
    ) as stream:
        started = next(event for event in stream if event.type == "message_start")
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text" and text == block.text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == (
        whole.usage.output_tokens
    )
    assert started.message.usage.input_tokens == total_input(final.usage)


def test_answer_continues_the_assistants_prefix(client: anthropic.Anthropic) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "1. Red\n2. Green\n3."}]
    message = asked(client, messages=turns, max_tokens=4)
    (block,) = message.content
    assert block.type == "text" and not block.text.lstrip().startswith("1.")
    counted = client.messages.count_tokens(model="default", messages=turns)
    assert total_input(message.usage) == counted.input_tokens


def test_stop_reasons_for_length_and_stop_sequences(client: anthropic.Anthropic) -> None:
    cut = asked(client, max_tokens=3)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    whole = asked(client)
    (block,) = whole.content
    assert block.type == "text"
    word = block.text.split()[1]
    stopped = asked(client, stop_sequences=["never said", word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    (block,) = stopped.content
    assert block.type == "text" and word not in block.text


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "tool", "name": "get_weather"},
        {"type": "any", "disable_parallel_tool_use": True},
    ],
)
def test_forced_tool_is_called_once_with_its_arguments(
    client: anthropic.Anthropic, choice: Any
) -> None:
    question: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = asked(client, messages=question, tools=[WEATHER], tool_choice=choice, max_tokens=200)
    (call,) = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use"
    assert call.name == "get_weather" and set(call.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "31 degrees"}
    turns = [
        *question,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    assert asked(client, messages=turns, tools=[WEATHER]).stop_reason in ("end_turn", "max_tokens")


def test_documents_are_read_as_previews(client: anthropic.Anthropic, server: RunningServer) -> None:
    data = base64.b64encode(b"name,length\nMur,480\n" * 40).decode()
    source = {"type": "base64", "media_type": "text/csv", "data": data}
    block = {"type": "document", "title": "rivers.csv", "source": source}
    shown = client.messages.count_tokens(
        model="default", messages=[{"role": "user", "content": [block]}]
    )
    assert 300 < shown.input_tokens < 800
    reference = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    answer = reference.chat.completions.create(
        model="default",
        max_tokens=4,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "file", "file": {"filename": "rivers.csv", "file_data": data}}
                ],
            }
        ],
    )
    assert answer.usage is not None
    assert abs(answer.usage.prompt_tokens - shown.input_tokens) < 10
    with pytest.raises(openai.NotFoundError) as caught:
        file = {"type": "file", "file": {"file_id": "file-0"}}
        reference.chat.completions.create(
            model="default", messages=[{"role": "user", "content": [file]}]
        )
    assert caught.value.code == "file_not_found"


def test_private_addresses_and_images_are_refused(client: anthropic.Anthropic) -> None:
    for block, words in (
        ({"type": "document", "source": {"type": "url", "url": "http://127.0.0.1:1/x"}}, "fetch"),
        ({"type": "image", "source": {"type": "url", "url": "https://a.example/x"}}, "text only"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=words):
            asked(client, messages=[{"role": "user", "content": [block]}])
