"""Functions that the dispatch URL executes, against a server on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock import __version__
from penstock.agent.tools.dispatch import MAX_BODY_BYTES, DispatchTools
from penstock.agent.tools.tool import BadArguments, CallContext, ToolOutcome
from penstock.config import AgentSettings
from penstock.dialog import FunctionTool, GenerateRequest, ToolCall


@dataclass
class Receiver:
    """Answers each request with the next of `answers`: (status, headers, body), or an event for
    which it waits forever. Keeps the requests."""

    answers: list[tuple[int, str, bytes] | asyncio.Event]
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.requests.append((head[0], headers, body))
        answer = self.answers.pop(0)
        if isinstance(answer, asyncio.Event):
            answer.set()
            await reader.read()
            self.left.set()
        else:
            status, extra, data = answer
            length = f"content-length: {len(data)}\r\n"
            writer.write(f"HTTP/1.1 {status} X\r\n{length}{extra}\r\n".encode() + data)
        writer.close()


@asynccontextmanager
async def dispatching(
    *answers: tuple[int, str, bytes] | asyncio.Event, **settings: Any
) -> AsyncIterator[tuple[DispatchTools, Receiver]]:
    receiver = Receiver(list(answers))
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    tools = DispatchTools(
        AgentSettings(tool_dispatch_url=f"http://127.0.0.1:{port}/call", **settings)
    )
    try:
        yield tools, receiver
    finally:
        await tools.close()
        server.close()


async def call(tools: DispatchTools, arguments: str = '{"city": "Kraków"}') -> ToolOutcome:
    (tool,) = tools.tools([FunctionTool("weather")])
    context = CallContext(
        "s", "c", 0, ToolCall("call_7", "weather", arguments), GenerateRequest(model="m")
    )
    return await tool.run(tool.decode(arguments), context)


async def test_a_call_is_one_post_of_name_and_arguments() -> None:
    async with dispatching((200, "", b'{"content": "12 C"}')) as (tools, receiver):
        outcome = await call(tools)
        assert outcome.result == "12 C" and not outcome.is_error
        assert outcome.activity.status == "success"
        ((line, headers, body),) = receiver.requests
        assert line == "POST /call HTTP/1.1"
        assert json.loads(body) == {"name": "weather", "arguments": {"city": "Kraków"}}
        assert headers["user-agent"] == f"penstock/{__version__}"
        assert headers["content-type"] == "application/json"
        assert headers["x-penstock-call-id"] == "call_7"
        assert "x-penstock-signature" not in headers


async def test_tools_are_external_and_declare_the_clients_function() -> None:
    function = FunctionTool("weather", "Say the weather.", {"type": "object"})
    async with dispatching() as (tools, _):
        (tool,) = tools.tools([function])
    assert tool.function is function and not tool.reads_only
    assert (tool.info.name, tool.info.kind, tool.info.source) == ("weather", "external", "external")
    with pytest.raises(BadArguments):
        tool.decode("[1]")


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"plain", "plain"),
        (b'{"content": 1}', '{"content": 1}'),
        (b'{"other": "x"}', '{"other": "x"}'),
        (b'["content"]', '["content"]'),
        (b"", ""),
        (b"\xff", "\ufffd"),
        (b"x" * 300_000, "x" * 262_144 + "\n[cut: 37856 of 300000 bytes are not shown]"),
    ],
)
async def test_other_bodies_are_the_result_as_they_are(body: bytes, result: str) -> None:
    async with dispatching((200, "", body)) as (tools, _):
        outcome = await call(tools)
        assert outcome.result == result and not outcome.is_error


async def test_calls_are_signed_with_the_secret() -> None:
    async with dispatching((200, "", b"ok"), tool_dispatch_secret="geheim") as (tools, receiver):
        await call(tools)
    _, headers, body = receiver.requests[0]
    timestamp = headers["x-penstock-timestamp"]
    assert timestamp.isdecimal()
    signed = timestamp.encode() + b"." + body
    expected = hmac.new(b"geheim", signed, hashlib.sha256).hexdigest()
    assert headers["x-penstock-signature"] == f"v1={expected}"


async def test_a_busy_receiver_is_asked_again_with_the_same_call_id() -> None:
    answers = [(503, "retry-after: 0\r\n", b""), (502, "", b""), (200, "", b"ok")]
    async with dispatching(*answers) as (tools, receiver):
        outcome = await call(tools)
    assert outcome.result == "ok"
    assert [r[1]["x-penstock-call-id"] for r in receiver.requests] == ["call_7"] * 3
    assert len({r[2] for r in receiver.requests}) == 1


async def test_the_third_failure_is_the_result() -> None:
    async with dispatching(*[(504, "retry-after: 0\r\n", b"")] * 4) as (tools, receiver):
        outcome = await call(tools)
    assert len(receiver.requests) == 3
    assert outcome.is_error and outcome.activity.status == "error"
    assert outcome.result == {"error": "HTTP 504", "tool": "weather", "status": "failed"}


@pytest.mark.parametrize("status", [302, 400, 404, 500])
async def test_other_statuses_fail_without_another_attempt(status: int) -> None:
    async with dispatching((status, "location: http://127.0.0.1:1/\r\n", b"x")) as (
        tools,
        receiver,
    ):
        outcome = await call(tools)
    assert len(receiver.requests) == 1
    assert outcome.result == {"error": f"HTTP {status}", "tool": "weather", "status": "failed"}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_an_unreachable_receiver_is_a_failed_result(closed_port: int) -> None:
    tools = DispatchTools(AgentSettings(tool_dispatch_url=f"http://127.0.0.1:{closed_port}/"))
    outcome = await call(tools)
    await tools.close()
    assert isinstance(outcome.result, dict) and outcome.result["error"].startswith("cannot connect")


async def test_a_receiver_that_does_not_answer_is_a_failed_result_and_not_asked_again() -> None:
    async with dispatching(asyncio.Event(), tool_dispatch_timeout=1) as (tools, receiver):
        outcome = await call(tools)
        await receiver.left.wait()
    assert isinstance(outcome.result, dict)
    assert outcome.result["error"] == "no answer within 1 s"
    assert len(receiver.requests) == 1


async def test_a_cancelled_call_closes_its_connection() -> None:
    reached = asyncio.Event()
    async with dispatching(reached) as (tools, receiver):
        task = asyncio.create_task(call(tools))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await receiver.left.wait()


async def test_a_body_over_the_limit_is_a_failed_result() -> None:
    async with dispatching((200, "", b"x" * (MAX_BODY_BYTES + 1))) as (tools, _):
        outcome = await call(tools)
    assert isinstance(outcome.result, dict)
    assert outcome.result["error"] == "the answer is larger than 8 MiB"


async def test_a_broken_answer_is_a_failed_result() -> None:
    async with dispatching((200, "content-length: 5\r\n", b"x")) as (tools, _):
        outcome = await call(tools)
    assert outcome.is_error
