"""Errors, routes, request ids and CORS."""

from __future__ import annotations

import asyncio
import json

import anthropic
import pytest
from scripted_answers import CHAT, HELLO, raising, waiting

from penstock.base.errors import EngineFault, InvalidRequest, Overloaded, Unavailable
from penstock.config import ServerSettings
from penstock.dialog import RunFailed
from tests.support.servers.http_server import MODEL, frames_of, serving


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"),
    [
        (Overloaded("full", retry_after_s=7), 429, "rate_limit_error", "queue_full", "7"),
        (Overloaded("full"), 429, "rate_limit_error", "queue_full", "1"),
        (Unavailable("restarting"), 503, "server_error", "unavailable", "1"),
        (EngineFault("died"), 500, "server_error", "engine_fault", None),
        (InvalidRequest("no", field="x"), 400, "invalid_request_error", "invalid_value", None),
        (
            RunFailed(503, "server_error", "unavailable", "restarting"),
            *(503, "server_error", "unavailable", "1"),
        ),
        (
            RunFailed(429, "rate_limit_error", "queue_full", "full", retry_after_s=7),
            *(429, "rate_limit_error", "queue_full", "7"),
        ),
    ],
)
async def test_error_before_the_first_token_is_a_status(
    stream, error, status, kind, code, retry_after
):
    async with serving(raising(error)) as server:
        answer = await server.http.post(CHAT, json=HELLO | {"stream": stream})
    assert answer.status_code == status
    body = answer.json()["error"]
    assert (body["type"], body["code"]) == (kind, code)
    assert set(body) == {"message", "type", "param", "code"}
    assert answer.headers.get("retry-after") == retry_after


@pytest.mark.parametrize(
    "error",
    [
        EngineFault("the engine stopped"),
        RunFailed(500, "server_error", "engine_fault", "the engine stopped"),
    ],
)
async def test_error_in_an_open_stream_is_an_error_frame_and_the_end(error):
    async with serving(raising(error, after_text=True)) as server:
        answer = await server.http.post(CHAT, json=HELLO | {"stream": True})
    frames = frames_of(answer.text)
    assert answer.status_code == 200 and frames[-1] == "[DONE]"
    assert json.loads(frames[-2]) == {
        "error": {
            "message": "the engine stopped",
            "type": "server_error",
            "param": None,
            "code": "engine_fault",
        }
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after_text", [False, True])
async def test_unexpected_exception_is_logged_and_not_sent(stream, after_text, caplog):
    script = raising(ZeroDivisionError("secret /path"), after_text=after_text)
    async with serving(script) as server:
        headers = {"x-request-id": "my-request"}
        answer = await server.http.post(CHAT, json=HELLO | {"stream": stream}, headers=headers)
        again = await server.http.get("/health")
    assert "secret" not in answer.text and "internal error" in answer.text
    assert answer.status_code == (200 if stream and after_text else 500)
    assert again.status_code == 200
    assert any("my-request" in r.getMessage() and r.exc_info for r in caplog.records)


async def test_invalid_request_does_not_affect_others():
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        good = asyncio.create_task(server.http.post(CHAT, json=HELLO))
        await server.until(lambda: server.loop.running == 1)
        for body in (b"{", b"\xff", b'{"messages": 3}'):
            assert (await server.http.post(CHAT, content=body)).status_code == 400
        gate.set()
        assert (await good).json()["choices"][0]["message"]["content"] == "Hello"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("POST", "/v1/nowhere", 404, "route_not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/unknown", 404, "model_not_found"),
    ],
)
async def test_unknown_routes_and_methods_answer_in_the_error_envelope(method, path, status, code):
    async with serving() as server:
        answer = await server.http.request(method, path)
    assert answer.status_code == status and answer.json()["error"]["code"] == code
    assert ("allow" in answer.headers) == (status == 405)
    if status == 405:
        assert answer.json()["error"]["message"] == f"{method} is not allowed on {path}"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completion", "; the nearest one is /v1/chat/completions"),
        ("/v1/chat/completions/", "; the nearest one is /v1/chat/completions"),
        ("/v1/file/abc/content", "; the nearest one is /v1/files/{file_id}/content"),
        ("/chat/completions", "; the client's base URL must end in /v1; the route is /v1/chat/"),
        ("/models", "; the client's base URL must end in /v1; the route is /v1/models"),
        ("/v1/v1/responses", ", so its base URL must end without it; the route is /v1/responses"),
        ("/quite/something/else", "there is no route /quite/something/else"),
        (
            "/v1/audio/transcriptions",
            "as an `input_audio` part to a Whisper model",
        ),
        ("/v1/images/edits", "from a prompt only; the route is /v1/images/generations"),
        ("/v1/" + "x" * 60_000, "there is no route /v1/xxx"),
    ],
)
async def test_unknown_route_error_suggests_the_nearest_route(path, told):
    async with serving() as server:
        answer = await server.http.post(path, json={})
    message = answer.json()["error"]["message"]
    assert answer.status_code == 404 and told in message
    assert len(message) < 500 and message.isprintable()


async def test_wrong_base_url_of_anthropics_client_is_explained():
    async with (
        serving() as server,
        anthropic.AsyncAnthropic(
            base_url=f"{server.url}/v1", api_key="any", max_retries=0
        ) as client,
    ):
        with pytest.raises(anthropic.NotFoundError) as caught:
            await client.messages.create(
                model="default", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
            )
    assert caught.value.body["error"]["type"] == "not_found_error"
    told = "there is no route /v1/v1/messages; the client adds /v1 itself, so its base URL must end"
    assert told in caught.value.body["error"]["message"]


async def test_unknown_model_is_404_and_lists_the_models():
    async with serving() as server:
        answer = await server.http.post(CHAT, json=HELLO | {"model": "gpt-9"})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found" and error["param"] == "model"
    assert MODEL in error["message"] and "gpt-9" in error["message"]


async def test_health_answers_ok_as_text():
    async with serving() as server:
        for path in ("/", "/health"):
            answer = await server.http.get(path)
            assert (answer.status_code, answer.text) == (200, "OK")
            assert answer.headers["content-type"].startswith("text/plain")


async def test_request_id_is_echoed_or_created():
    async with serving() as server:
        given = await server.http.get("/health", headers={"x-request-id": "abc-1"})
        made = await server.http.get("/nowhere")
        bad = await server.http.get("/health", headers={"x-request-id": "a b" * 100})
    assert given.headers["x-request-id"] == "abc-1"
    assert made.headers["x-request-id"].startswith("req_")
    assert bad.headers["x-request-id"].startswith("req_")


async def test_request_id_header_can_be_switched_off():
    async with serving(settings=ServerSettings(disable_request_id_header=True)) as server:
        answer = await server.http.get("/health", headers={"x-request-id": "abc-1"})
    assert "x-request-id" not in answer.headers


async def test_preflight_allows_the_headers_of_official_clients():
    async with serving() as server:
        headers = {
            "origin": "https://example.org",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, compat-version,"
            " x-stainless-lang, x-stainless-retry-count, x-stainless-helper, user-agent,"
            # the headers that the official clients send, in Firefox too
            " openai-organization, openai-project",
        }
        answer = await server.http.options(CHAT, headers=headers)
        plain = await server.http.post(CHAT, json=HELLO, headers={"origin": "https://x.org"})
        error = await server.http.post(CHAT, content=b"{", headers={"origin": "https://x.org"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    methods = answer.headers["access-control-allow-methods"]
    assert set(methods.split(", ")) == {"GET", "POST", "PUT", "DELETE"}
    allowed = answer.headers["access-control-allow-headers"].lower()
    for name in ("x-api-key", "compat-beta", "anthropic-version", "x-request-id"):
        assert name in allowed
    for answer in (plain, error):
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["access-control-expose-headers"] == "x-request-id"
