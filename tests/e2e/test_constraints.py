"""Structured output as a user asks for it: the official client against a running server."""

from __future__ import annotations

import asyncio
import json
import re
from enum import Enum
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.e2e.conftest import RunningServer


class Colour(str, Enum):
    red = "red"
    green = "green"
    blue = "blue"


class Wheel(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inches: int = Field(ge=10, le=30)
    colour: Colour


class Bicycle(BaseModel):
    model_config = ConfigDict(extra="forbid")
    brand: str = Field(max_length=20)
    electric: bool
    price: int | None = Field(ge=0, le=999)
    wheels: list[Wheel] = Field(max_length=2)


ASK: list[Any] = [{"role": "user", "content": "Describe a bicycle for a child, briefly, as JSON."}]


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def test_parse_gives_objects(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="default",
        messages=ASK,
        response_format=Bicycle,
        temperature=1,
        seed=4,
        n=3,
        max_tokens=400,
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert all(isinstance(choice.message.parsed, Bicycle) for choice in answer.choices)


def test_a_stream_accumulates_to_the_object(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="default",
        messages=ASK,
        response_format=Wheel,
        temperature=1,
        seed=5,
        max_tokens=200,
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert len(deltas) > 1
    assert "".join(deltas) == final.choices[0].message.content
    assert isinstance(final.choices[0].message.parsed, Wheel)


@pytest.mark.parametrize(
    ("kind", "value", "pattern"),
    [
        ("regex", r"(yes|no), [a-z]{3,9}\.", r"(yes|no), [a-z]{3,9}\."),
        ("lark", 'start: "<" WORD ">"\nWORD: /[a-z]{2,8}/', r"<[a-z]{2,8}>"),
        ("gbnf", 'root ::= "(" root? ")" | [a-z]{2,8} "."', r"\(*([a-z]{2,8}\.)?\)*"),
        ("json_schema", {"enum": ["one", "two"]}, r'"(one|two)"'),
        ("llguidance", {"grammars": [{"lark_grammar": "start: /[0-9]{4}/"}]}, r"[0-9]{4}"),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_grammars_of_every_kind(
    server: RunningServer, route: str, kind: str, value: Any, pattern: str
) -> None:
    prompt = {"messages": ASK} if route.startswith("chat") else {"prompt": "Is it so? "}
    body = {"model": "default", "max_tokens": 40, "grammar": {"type": kind, "value": value}}
    answer = httpx.post(f"{server.url}/v1/{route}", json=body | prompt, timeout=60).json()
    choice = answer["choices"][0]
    text = choice["message"]["content"] if route.startswith("chat") else choice["text"]
    assert re.fullmatch(pattern, text)
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_schema_is_a_client_error_that_names_its_place(
    client: openai.OpenAI, stream: bool
) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "strin"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="default",
            messages=ASK,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": wrong, "strict": True},
            },
            stream=stream,
        )
    assert caught.value.param == "response_format"
    assert "/properties/a" in caught.value.message


async def test_constrained_and_free_answers_share_the_batch(server: RunningServer) -> None:
    client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)
    schema = Wheel.model_json_schema()
    formats: list[Any] = [
        openai.omit,
        {"type": "json_schema", "json_schema": {"name": "wheel", "schema": schema}},
    ]

    async def ask(index: int) -> str:
        answer = await client.chat.completions.create(
            model="default",
            messages=ASK,
            response_format=formats[index % 2],
            temperature=1,
            seed=index // 2 % 3,
            max_tokens=48,
        )
        return answer.choices[0].message.content or ""

    together = await asyncio.gather(*(ask(index) for index in range(12)))
    for index, text in enumerate(together):
        if index % 2:
            jsonschema.validate(json.loads(text), schema)
        assert text == together[index % 6]
    assert together[0] == await ask(0)
    metrics = httpx.get(server.url + "/metrics").text
    assert re.search(r"service_forced_tokens_total [1-9]", metrics)
    assert re.search(r"service_grammars_compiled_total [1-9]", metrics)
