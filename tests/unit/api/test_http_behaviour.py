"""What the server does around a request: errors, limits, ids, CORS, disconnects, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from types import SimpleNamespace

import httpx
import orjson
import pytest
from http_serving import CREATED, MODEL, frames_of, serving, spoken

from penstock.api.body import BUDGET_BODIES, SMALL_BODY_SHARE
from penstock.api.routes.reading import THREAD_BODY_BYTES
from penstock.base.errors import EngineFault, InvalidRequest, Overloaded, Unavailable
from penstock.config import ServerSettings
from penstock.dialog import PartStarted, RunFailed, RunStarted, TextDelta

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}]}


def raising(error, *, after_text=False):
    def script(request):
        yield RunStarted(MODEL, CREATED, 1)
        if after_text:
            yield PartStarted(0, 0, "text")
            yield TextDelta(0, 0, "He")
        yield error

    return script


def waiting(gate, *, after_text=True):
    def script(request):
        steps = iter(spoken("Hel", "lo")(request))
        yield next(steps)
        if after_text:
            yield next(steps)
            yield next(steps)
        yield gate
        yield from steps

    return script


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
async def test_unforeseen_exception_is_logged_and_never_shown(stream, after_text, caplog):
    script = raising(ZeroDivisionError("secret /path"), after_text=after_text)
    async with serving(script) as server:
        headers = {"x-request-id": "my-request"}
        answer = await server.http.post(CHAT, json=HELLO | {"stream": stream}, headers=headers)
        again = await server.http.get("/health")
    assert "secret" not in answer.text and "internal error" in answer.text
    assert answer.status_code == (200 if stream and after_text else 500)
    assert again.status_code == 200
    assert any("my-request" in r.getMessage() and r.exc_info for r in caplog.records)


async def test_bad_request_leaves_its_neighbour_alone():
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


async def test_unknown_model_is_404_and_names_what_there_is():
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


async def test_request_id_is_echoed_or_made():
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


async def test_preflight_allows_what_the_specification_lists():
    async with serving() as server:
        headers = {
            "origin": "https://example.org",
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, compat-version,"
            " x-stainless-lang, x-stainless-retry-count, x-stainless-helper, user-agent,"
            " openai-organization, openai-project",  # as the official clients send, in Firefox too
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


SMALL = ServerSettings(body_limit_bytes=64 * 1024)


async def test_body_over_the_limit_is_refused_and_the_connection_goes_on():
    async with serving(settings=SMALL) as server:
        for size, status in ((64 * 1024 + 1, 413), (64 * 1024, 400), (5_000_000, 413)):
            answer = await server.http.post(CHAT, content=b"x" * size)
            assert answer.status_code == status
        assert answer.json()["error"]["code"] == "payload_too_large"
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200


async def test_chunked_body_over_the_limit_is_refused_while_it_arrives():
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 16 * 1024
            yield b" " * 16 * 1024

    async with serving(settings=SMALL) as server:
        with pytest.raises(httpx.HTTPError):
            # Nobody reads this answer to its end: the server hangs up on an endless body.
            await asyncio.wait_for(_post_and_check_413(server, endless()), 10)
    assert sent < 100 * 1024 * 1024


async def _post_and_check_413(server, content):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
    )
    async for chunk in content:
        writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        await writer.drain()
        if reader._buffer:
            break
    head = await reader.readuntil(b"\r\n")
    assert b"413" in head
    writer.close()
    raise httpx.HTTPError("done")


async def test_body_over_the_limit_is_not_buffered():
    async with serving(settings=SMALL) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000000\r\n\r\n"
        writer.write(head % CHAT.encode())
        assert b"413" in await reader.readuntil(b"\r\n")  # before a byte of the body was sent
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, HELLO),
        ("POST", CHAT, {"messages": 5}),
        ("PUT", "/v1/sessions/s", {"messages": []}),
        ("POST", "/v1/agent/approvals/a", {"decision": "deny"}),
        ("POST", "/v1/models/status", {"model_id": MODEL}),
        ("POST", "/v1/models/tune", {"model_id": MODEL}),
    ],
)
async def test_large_bodies_are_decoded_in_threads(method, path, body, monkeypatch):
    threads = set()

    def loads(body):
        threads.add(threading.current_thread())
        return orjson.loads(body)

    watched = SimpleNamespace(loads=loads, JSONDecodeError=orjson.JSONDecodeError)
    monkeypatch.setattr("penstock.api.codecs.fields.orjson", watched)
    async with serving() as server:
        await server.http.request(method, path, json=body | {"x": "x" * THREAD_BODY_BYTES})
    assert threads and threading.current_thread() not in threads


@pytest.mark.parametrize("path", [CHAT, "/v1/skills"])
async def test_bodies_in_flight_share_a_budget(path):
    async with serving(settings=SMALL) as server:
        port = int(server.url.split(":")[-1])
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 65536\r\n" % path.encode()
        head += b"content-type: multipart/form-data; boundary=b\r\n\r\n"
        part = b'--b\r\ncontent-disposition: form-data; name="files"; filename="a"\r\n\r\n'
        writers = []
        for _ in range(BUDGET_BODIES):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + part.ljust(65535))
            writers.append(writer)
        held = SMALL.body_limit_bytes * BUDGET_BODIES - BUDGET_BODIES
        await server.until(lambda: server.services.bodies._held_bytes == held)
        large = HELLO | {"x": "x" * (SMALL.body_limit_bytes // SMALL_BODY_SHARE)}
        refused = await server.http.post(CHAT, json=large)
        assert refused.status_code == 429 and "retry-after" in refused.headers
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200  # it is small
        for writer in writers:
            writer.close()
        await server.until(lambda: server.services.bodies._held_bytes == 0)
        assert (await server.http.post(CHAT, json=large)).status_code == 200


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
async def test_stream_to_an_http_1_0_client_is_ended_by_the_connection(connection):
    body = json.dumps(HELLO | {"stream": True}).encode()
    head = b"POST %b HTTP/1.0\r\nconnection: %b\r\ncontent-length: %d\r\n\r\n"
    async with serving(spoken("Hel", "lo")) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(head % (CHAT.encode(), connection, len(body)) + body)
        told, _, frames = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"transfer-encoding" not in told and b"connection: close" in told
    assert frames.startswith(b"data: {") and frames.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_answer_to_an_http_1_0_client_has_its_length():
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
        told, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert b"content-length: %d" % len(answer) in told and json.loads(answer)["data"]


async def test_head_over_its_limit_and_garbage_are_refused():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for request, status in (
            (b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 100_000, b"431"),
            (b"GET /" + b"a" * 1_000_000, b"431"),
            (b"\x16\x03\x01garbage\r\n\r\n", b"400"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            assert status in await reader.readuntil(b"\r\n")
            writer.close()
        assert (await server.http.get("/health")).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
async def test_client_that_never_ends_its_head_is_dropped(sent, monkeypatch):
    monkeypatch.setattr("penstock.api.protocol.HEAD_TIMEOUT_S", 0.02)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        assert (await server.http.get("/health")).status_code == 200


@pytest.mark.parametrize("framing", ["content-length", "chunked", "in pieces"])
async def test_upgrade_that_is_not_supported_is_ignored(framing):
    body = json.dumps(HELLO).encode()
    framed = b"content-length: %d\r\n\r\n%b" % (len(body), body)
    if framing == "chunked":
        framed = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n" % CHAT.encode()
    health = (
        b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: upgrade, close\r\nupgrade: h2c\r\n\r\n"
    )
    sent = head + framed + head + framed + health
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in [bytes((byte,)) for byte in sent] if framing == "in pieces" else [sent]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        raw = await reader.read(-1)
        writer.close()
    assert raw.count(b"HTTP/1.1 200 OK") == 3 and raw.count(b'"Hello!"') == 2


async def test_body_that_follows_another_answer_may_take_its_time(monkeypatch):
    monkeypatch.setattr("penstock.api.protocol.LINGER_S", 0.0)
    gate = asyncio.Event()
    body = json.dumps(HELLO).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    async with serving(waiting(gate)) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body + head + body[:9])
        await server.until(lambda: server.loop.running == 1)
        gate.set()
        assert b"200 OK" in await reader.readuntil(b'"Hello"')
        await server.until(lambda: server.loop.running == 0)
        await server.until(lambda: len(server.server.server_state.tasks) == 1)
        writer.write(body[9:])
        assert b"200 OK" in await reader.readuntil(b'"Hello"')
        writer.close()


async def test_client_that_never_ends_its_body_is_told_so():
    async with serving(settings=ServerSettings(stall_timeout_s=0.02)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
        writer.write(head.encode() + b'{"messages"')
        assert b" 408 " in await reader.readuntil(b"\r\n")
        assert b"request_timeout" in await reader.readuntil(b"}}")
        writer.close()
        assert server.loop.requests == []


CHUNKED = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("last", [b"0\r\n", b"5;"], ids=["trailers", "extension"])
@pytest.mark.parametrize("piece", [b"x: y\r\n", b"x"], ids=["lines", "no end"])
async def test_what_is_no_body_has_a_bound(last: bytes, piece: bytes):
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(CHUNKED + b"1\r\n \r\n" + last)
        answer = asyncio.create_task(reader.read())
        for _ in range(1000):
            if answer.done():
                break
            writer.write(piece * (1024 // len(piece)))
            await asyncio.sleep(0)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        else:
            raise AssertionError("a megabyte was taken")
        with contextlib.suppress(ConnectionError):
            assert b"400" in (await answer)[:20]
        writer.close()
        assert server.loop.requests == []


@pytest.mark.parametrize("target", [b"a:1", b"/" + b"x" * 65_600, b"//["])
async def test_target_that_is_no_url_is_refused_also_behind_a_good_one(target: bytes):
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for before in (b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(before)
            if before:
                assert b"200" in await reader.readuntil(b"\r\n")
            writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
            await reader.readuntil(b"HTTP/1.1 4")
            writer.close()


async def test_trailers_are_read_over():
    body = json.dumps(HELLO).encode()
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        for _ in range(2):  # the connection goes on
            writer.write(CHUNKED + chunks + b"0\r\ncontent-type: text/html\r\nx: y\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b'"Hello!"')
            await reader.readuntil(b"}}}")
        writer.close()


async def test_body_in_a_hundred_thousand_chunks_is_taken():
    body = json.dumps(HELLO).encode()
    padded = body + b" " * (100_000 - len(body))
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + b"0\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b'"Hello!"')
        writer.close()


async def test_body_that_comes_byte_by_byte_is_cut_off():
    async with serving(settings=ServerSettings(stall_timeout_s=0.2)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.split(":")[-1]))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode())
        answer = asyncio.create_task(reader.readuntil(b"}}"))
        while not answer.done():  # never stalls
            writer.write(b" ")
            await asyncio.sleep(0.01)
        assert b" 408 " in answer.result()
        writer.close()


async def test_connections_beyond_the_bound_are_told_so():
    async with serving(settings=ServerSettings(max_connections=1)) as server:
        assert (await server.http.get("/health")).status_code == 200
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert b"503" in await reader.readuntil(b"\r\n")
        writer.close()


async def test_a_thousand_idle_connections_hold_nobody_up():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        writers = []
        for _ in range(1000):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"200" in await reader.readuntil(b"\r\n")
            writers.append(writer)
        assert len(server.server.server_state.connections) >= 1000
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200
        for writer in writers:
            writer.transport.abort()
        await server.until(lambda: len(server.server.server_state.connections) <= 1)


async def test_idle_stream_gets_keep_alive_comments():
    gate = asyncio.Event()
    settings = ServerSettings(keep_alive_interval_ms=5)
    async with serving(waiting(gate), settings=settings) as server:
        body = HELLO | {"stream": True}
        comments = 0
        lines = []
        async with server.http.stream("POST", CHAT, json=body) as answer:
            async for line in answer.aiter_lines():
                comments += line.startswith(":")
                if line.startswith("data:"):
                    lines.append(line)
                if comments == 3:
                    gate.set()
    assert comments >= 3 and lines[-1] == "data: [DONE]"


async def test_stream_opens_with_a_keep_alive_while_its_prompt_waits():
    gate = asyncio.Event()
    settings = ServerSettings(keep_alive_interval_ms=5)
    async with (
        serving(waiting(gate, after_text=False), settings=settings) as server,
        server.http.stream("POST", CHAT, json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith(":")
        gate.set()
        assert [line async for line in lines][-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_that_vanish_leave_nothing_behind(stream):
    """200 clients send a request and hang up, half of them while the answer is open."""
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        port = int(server.url.split(":")[-1])
        body = json.dumps(HELLO | {"stream": stream}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        tasks_before = len(asyncio.all_tasks())
        writers = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % (CHAT.encode(), len(body)) + body)
            writers.append(writer)
        await server.until(lambda: server.loop.running == 200)
        for writer in writers:
            writer.transport.abort()
        await server.until(lambda: server.loop.running == 0)
        await server.until(lambda: not server.server.server_state.tasks)
        await server.until(lambda: len(asyncio.all_tasks()) <= tasks_before)
        assert server.loop.cut_short == 200
        assert not server.server.server_state.connections
        gate.set()
        assert (await server.http.post(CHAT, json=HELLO)).status_code == 200


async def test_client_that_vanishes_before_its_body_is_whole_leaves_nothing_behind():
    async with serving() as server:
        port = int(server.url.split(":")[-1])
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{" % CHAT.encode()
            )
            await writer.drain()
            writer.transport.abort()
        await server.until(lambda: not server.server.server_state.tasks)
        assert server.loop.requests == []


async def test_slow_reader_gets_the_same_text():
    count = 8_000
    gate = asyncio.Event()

    def script(request):
        for index, step in enumerate(spoken(*(["0123456789"] * count))(request)):
            if index == count:
                gate.set()
            yield step

    async with serving(script) as server:
        port = int(server.url.split(":")[-1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps(HELLO | {"stream": True}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        await gate.wait()  # the run is nearly over; the client has read next to nothing
        raw = await reader.read(-1)
        writer.close()
    text = b"".join(_dechunk(raw.partition(b"\r\n\r\n")[2])).decode()
    chunks = [json.loads(frame) for frame in frames_of(text)[:-1]]
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == "0123456789" * count


def _dechunk(raw: bytes):
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        yield raw[: int(size, 16)]
        raw = raw[int(size, 16) + 2 :]


async def test_reader_that_stops_reading_is_dropped():
    def endless(request):
        yield RunStarted(MODEL, CREATED, 1)
        yield PartStarted(0, 0, "text")
        while True:
            yield TextDelta(0, 0, "x" * 10_000)

    settings = ServerSettings(stall_timeout_s=0.05, keep_alive_interval_ms=20)
    async with serving(endless, settings=settings) as server:
        port = int(server.url.split(":")[-1])
        _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = json.dumps(HELLO | {"stream": True}).encode()
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % (CHAT.encode(), len(body)) + body)
        await server.until(lambda: server.loop.cut_short == 1)
        await server.until(lambda: not server.server.server_state.connections)
        writer.transport.abort()


async def test_stopping_drains_open_streams_and_takes_no_new_ones():
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO | {"stream": True}))
        await server.until(lambda: server.loop.running == 1)
        server.server.stop()
        await server.until(lambda: not any(s.is_serving() for s in server.server.servers))
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(base_url=server.url) as fresh:
                await fresh.get("/health")
        gate.set()
        assert frames_of((await answer).text)[-1] == "[DONE]"


async def test_stopping_twice_drops_open_streams():
    gate = asyncio.Event()
    async with serving(waiting(gate)) as server:
        answer = asyncio.create_task(server.http.post(CHAT, json=HELLO | {"stream": True}))
        await server.until(lambda: server.loop.running == 1)
        server.server.stop()
        server.server.stop()
        with pytest.raises(httpx.HTTPError):
            await answer
        await server.until(lambda: server.loop.running == 0)


async def test_drain_that_takes_too_long_ends_streams_with_an_error():
    gate = asyncio.Event()
    settings = ServerSettings(drain_timeout_s=0.0)
    async with (
        serving(waiting(gate), settings=settings) as server,
        server.http.stream("POST", CHAT, json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        server.server.stop()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]" and "shutting down" in rest[-2]
