"""What the vendors' clients can do beyond one request: raw answers, retries, time limits, pages,
helpers of streams. Their classes and parsers for single answers are tested beside each dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import anthropic
import openai
import pydantic
import pytest

from penstock.base.errors import Overloaded, Unavailable
from penstock.dialog import GenerateRequest
from tests.support.servers.http_server import MODEL, Serving, Step, serving, spoken
from tests.support.servers.responses_server import answering

MESSAGES: Any = [{"role": "user", "content": "hi"}]


class River(pydantic.BaseModel):
    name: str
    length_km: int


def anthropic_client(server: Serving, **options: Any) -> anthropic.AsyncAnthropic:
    """Anthropic's client."""
    plain = anthropic.DefaultAsyncHttpxClient(verify=False)
    options = {"max_retries": 0} | options
    return anthropic.AsyncAnthropic(
        base_url=server.url, api_key="any", http_client=plain, **options
    )


class Busy:
    """Refuses two requests, answers the third, and so on."""

    def __init__(self) -> None:
        self.errors = cycle([Overloaded("full"), Unavailable("starting"), None])

    def __call__(self, request: GenerateRequest) -> Iterator[Step]:
        error = next(self.errors)
        if error is not None:
            yield error
        yield from spoken("Hello!")(request)


async def test_raw_answers_have_headers_and_parse() -> None:
    async with serving() as server, anthropic_client(server) as other:
        raw = await server.openai.chat.completions.with_raw_response.create(
            model="default", messages=MESSAGES
        )
        assert raw.headers["x-request-id"] and raw.parse().choices[0].message.content == "Hello!"
        assert raw.parse()._request_id == raw.headers["x-request-id"]
        response = await server.openai.responses.with_raw_response.create(
            model="default", input="hi"
        )
        assert response.parse().output_text == "Hello!"
        message = await other.messages.with_raw_response.create(
            model="default", max_tokens=9, messages=MESSAGES
        )
        said = (await message.parse()).content[0]
        assert message.headers["request-id"] and said.text == "Hello!"


async def test_streaming_answers_are_read_line_by_line() -> None:
    async with serving() as server, anthropic_client(server) as other:
        create = server.openai.chat.completions.with_streaming_response.create
        async with create(model="default", messages=MESSAGES) as raw:
            assert raw.status_code == 200 and (await raw.parse()).choices[0].finish_reason == "stop"
        async with create(model="default", messages=MESSAGES, stream=True) as raw:
            lines = [line async for line in raw.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        streamed = other.messages.with_streaming_response.create
        async with streamed(
            model="default", max_tokens=9, messages=MESSAGES, stream=True
        ) as raw_message:
            lines = [line async for line in raw_message.iter_lines() if line]
        assert lines[0] == "event: message_start"


async def test_clients_come_back_when_they_are_told_to(monkeypatch: Any) -> None:
    monkeypatch.setattr("penstock.api.http.errors.DEFAULT_RETRY_AFTER_S", 0)
    async with serving(Busy()) as server, anthropic_client(server, max_retries=2) as other:
        patient = server.openai.with_options(max_retries=2)
        answer = await patient.chat.completions.create(model="default", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello!"
        message = await other.messages.create(model="default", max_tokens=9, messages=MESSAGES)
        assert message.content[0].type == "text" and message.content[0].text == "Hello!"
        assert len(server.loop.requests) == 6


async def test_a_client_s_own_time_limit_ends_the_work() -> None:
    def waiting(request: GenerateRequest) -> Iterator[Step]:
        yield asyncio.Event()

    async with serving(waiting) as server, anthropic_client(server, timeout=0.05) as other:
        hasty = server.openai.with_options(timeout=0.05)
        with pytest.raises(openai.APITimeoutError):
            await hasty.chat.completions.create(model="default", messages=MESSAGES)
        with pytest.raises(anthropic.APITimeoutError):
            await other.messages.create(model="default", max_tokens=9, messages=MESSAGES)
        await server.until(lambda: server.loop.cut_short == 2)


async def test_the_chat_helper_of_streams_accumulates_and_parses() -> None:
    async with serving(spoken('{"name": "Ob", ', '"length_km": 3650}')) as server:
        chat = server.openai.chat.completions
        answer = await chat.parse(model="default", messages=MESSAGES, response_format=River)
        async with chat.stream(
            model="default", messages=MESSAGES, response_format=River, logprobs=True
        ) as events:
            seen = [event async for event in events]
            final = await events.get_final_completion()
    river = River(name="Ob", length_km=3650)
    assert answer.choices[0].message.parsed == final.choices[0].message.parsed == river
    kinds = {event.type for event in seen}
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta"} <= kinds
    assert final.usage is not None and final.usage.total_tokens == 11


async def test_the_responses_helper_takes_a_stream_up_again() -> None:
    async with answering() as server:
        client = server.openai.responses
        async with client.stream(model="default", input="hi", background=True) as events:
            first = [event async for event in events]
            whole = await events.get_final_response()
        async with client.stream(response_id=whole.id, starting_after=3) as events:
            rest = [event.sequence_number async for event in events]
            again = await events.get_final_response()
    assert again.output_text == whole.output_text == "Hello!"
    assert rest == [e.sequence_number for e in first if e.sequence_number > 3]


async def test_completions_are_streamed() -> None:
    async with serving() as server:
        chunks = await server.openai.completions.create(model="default", prompt="x", stream=True)
        texts = [choice.text async for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "Hello!"


async def test_files_come_page_by_page_and_are_waited_for() -> None:
    async with serving() as server:
        files = server.openai.files
        made = [
            await files.create(file=(f"{number}.txt", b"x"), purpose="user_data")
            for number in range(5)
        ]
        listed = [file.id async for file in files.list(limit=2, order="asc")]
        assert listed == [file.id for file in made]
        page = await files.list(limit=2)
        assert page.has_next_page() and len((await page.get_next_page()).data) == 2
        assert (await files.wait_for_processing(made[0].id)).status == "processed"
        async with files.with_streaming_response.content(made[0].id) as body:
            assert b"".join([piece async for piece in body.iter_bytes()]) == b"x"


async def test_models_are_listed_and_found() -> None:
    async with serving() as server, anthropic_client(server) as other:
        assert [model.id async for model in server.openai.models.list()] == ["default", MODEL]
        assert (await server.openai.models.retrieve(MODEL)).id == MODEL
        assert [model.id async for model in other.models.list()] == ["default", MODEL]
        assert (await other.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError):
            await server.openai.models.retrieve("other")


async def test_the_message_helper_of_streams_gives_texts_and_events() -> None:
    async with serving() as server, anthropic_client(server) as other:
        options: Any = {"model": "default", "max_tokens": 9, "messages": MESSAGES}
        async with other.messages.stream(**options) as events:
            assert [text async for text in events.text_stream] == ["Hel", "lo", "!"]
            assert await events.get_final_text() == "Hello!"
        async with other.messages.stream(**options) as events:
            await events.until_done()
            assert events.current_message_snapshot.usage.output_tokens == 4
        beta = await other.beta.messages.create(**options)
        assert beta.content[0].type == "text" and beta.stop_reason == "end_turn"
        counted = await other.beta.messages.count_tokens(model="default", messages=MESSAGES)
        assert counted.input_tokens == 7


async def test_files_of_the_second_vendors_client() -> None:
    async with serving() as server, anthropic_client(server) as other:
        files = other.beta.files
        made = [await files.upload(file=(f"{n}.txt", b"hello")) for n in range(3)]
        assert (made[0].type, made[0].filename, made[0].size_bytes) == ("file", "0.txt", 5)
        assert made[0].downloadable and made[0].created_at.year >= 2026
        assert await files.retrieve_metadata(made[0].id) == made[0]
        assert await (await files.download(made[0].id)).read() == b"hello"
        listed = [file.id async for file in files.list(limit=2)]
        assert listed == [file.id for file in reversed(made)]
        deleted = await files.delete(made[0].id)
        assert (deleted.id, deleted.type) == (made[0].id, "file_deleted")
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await server.openai.files.create(file=b"hello", purpose=openai.omit)  # type: ignore


async def test_models_of_the_second_vendors_client() -> None:
    async with serving() as server, anthropic_client(server) as other:
        cards = [card async for card in other.models.list()]
        assert [(card.id, card.type) for card in cards] == [("default", "model"), (MODEL, "model")]
        assert cards[1].display_name == MODEL and cards[1].created_at.year >= 2001
        assert await other.models.retrieve(MODEL) == cards[1]
        plain = (await server.http.get("/v1/models")).json()
        assert plain.keys() == {"object", "data"} and "type" not in plain["data"][0]
