"""Requests of the official client and of raw HTTP against a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx
import openai
import pytest

from tests.e2e.conftest import RunningServer

QUESTION = [{"role": "user", "content": "Name three colours."}]


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0)


def gauge(server: RunningServer, name: str) -> float:
    text = httpx.get(server.url + "/metrics").text
    (line,) = [line for line in text.splitlines() if line.startswith(name + " ")]
    return float(line.split()[1])


async def until_idle(server: RunningServer) -> None:
    """Wait until the server is idle; the test's own timeout reports anything left behind."""
    while gauge(server, "service_sequences_running") or gauge(server, "service_sequences_waiting"):
        await asyncio.sleep(0.02)


def test_chat_answers_with_text_and_usage(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default", messages=QUESTION, max_tokens=40, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_answer_is_the_unstreamed_one(client: openai.OpenAI) -> None:
    request = {"model": "default", "messages": QUESTION, "max_tokens": 64, "temperature": 0}
    whole = client.chat.completions.create(**request).choices[0].message.content
    stream = client.chat.completions.create(**request, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert len(pieces) > 3
    assert "".join(pieces) == whole


def test_seeded_choices_repeat_and_differ_among_themselves(client: openai.OpenAI) -> None:
    request = {"model": "default", "messages": QUESTION, "max_tokens": 24, "temperature": 1.5}
    first = client.chat.completions.create(**request, n=4, seed=11)
    again = client.chat.completions.create(**request, n=4, seed=11)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1


def test_logprobs_have_the_asked_alternatives(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="default",
        messages=QUESTION,
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.token == entry.top_logprobs[0].token
        assert entry.logprob <= 0


def test_stop_string_ends_the_answer_and_is_not_shown(client: openai.OpenAI) -> None:
    request = {"model": "default", "prompt": "1 2 3 4 5 6", "max_tokens": 32, "temperature": 0}
    whole = client.completions.create(**request).choices[0].text
    cut = whole[len(whole) // 2 :][:3]
    stopped = client.completions.create(**request, stop=[cut]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index(cut)]


def test_second_request_with_the_same_prompt_reuses_its_prefix(server: RunningServer) -> None:
    body = {"prompt": list(range(2000, 2100)), "max_tokens": 2, "temperature": 0}
    url = server.url + "/v1/completions"
    first, second = (httpx.post(url, json=body, timeout=60).json() for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 80
    assert first["choices"] == second["choices"]


def test_a_prompt_is_shared_with_requests_of_the_same_salt_only(server: RunningServer) -> None:
    body = {"prompt": list(range(3000, 3100)), "max_tokens": 2, "temperature": 0}

    def cached(fields: dict[str, str]) -> int:
        answer = httpx.post(server.url + "/v1/completions", json=body | fields, timeout=60)
        tokens: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens

    salts = [{"cache_salt": "one"}, {"cache_salt": "other"}, {}]
    assert [cached(salt) for salt in salts] == [0, 0, 0]
    assert all(cached(salt) >= 80 for salt in salts)


async def test_a_short_request_is_answered_while_a_long_prompt_is_computed(
    server: RunningServer,
) -> None:
    url = server.url + "/v1/completions"
    async with httpx.AsyncClient(timeout=300) as client:
        long = {"prompt": list(range(2000, 7900)), "max_tokens": 1}
        waiting = asyncio.create_task(client.post(url, json=long))
        while not gauge(server, "service_sequences_running"):
            await asyncio.sleep(0.01)
        for place in range(2):
            short = {"prompt": [900 + place, *range(1000, 1020)], "max_tokens": 1}
            answer = await client.post(url, json=short)
            assert answer.json()["usage"]["completion_tokens"] == 1
            assert not waiting.done()
        waiting.cancel()
    await until_idle(server)


def test_too_long_a_prompt_is_refused_with_the_numbers(server: RunningServer) -> None:
    body = {"prompt": [2000] * 100_000, "max_tokens": 2}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "100000" in answer.json()["error"]["message"].replace(",", "")


def test_body_of_one_byte_over_the_limit_is_refused(server: RunningServer) -> None:
    limit = 50 * 1024 * 1024
    for size, code in (
        (limit, "context_length_exceeded"),  # its body was read
        (limit + 1, "payload_too_large"),
    ):
        body = (b'{"max_tokens": 1, "prompt": "' + b"a" * size)[: size - 2] + b'"}'
        for content in (body, iter([body[:-1], body[-1:]])):  # with a Content-Length, and chunked
            answer = httpx.post(server.url + "/v1/completions", content=content, timeout=60)
            assert answer.json()["error"]["code"] == code
            assert answer.status_code == (400 if size == limit else 413)


async def test_200_disconnected_clients_leave_nothing_behind(server: RunningServer) -> None:
    used_before = gauge(server, "service_kv_cache_blocks_used")

    async def vanish(number: int) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps(
            {"prompt": f"Request {number} is", "max_tokens": 2000, "stream": True}
            | {"ignore_eos": True}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        if number % 2:
            await reader.read(100)
        writer.transport.abort()

    for start in range(0, 200, 50):
        await asyncio.gather(*(vanish(number) for number in range(start, start + 50)))
    await until_idle(server)
    assert gauge(server, "service_kv_cache_blocks_used") == used_before


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sampling_defaults_are_in_the_log_and_in_model_cards(
    start_server: Callable[..., RunningServer], workers: str
) -> None:
    running = start_server("--workers", workers, "--top-k", "30")
    line = "sampling unless a request says otherwise: temperature 0.2, top_k 30, top_p 0.9 "
    assert any(line + "(Penstock's catalogue; options: top_k)" in told for told in running.lines)
    card = httpx.get(running.url + "/v1/models/default").json()["sampling_defaults"]
    assert (card["temperature"], card["top_k"], card["top_p"]) == (0.2, 30, 0.9)
    assert (card["source"], card["options"]) == ("catalogue", ["top_k"])
