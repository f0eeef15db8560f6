"""Clients that disconnect or read slowly, in every phase of an answer: no row, request, task,
connection or future is left behind in any layer. The token source is scripted."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest

from penstock.agent import AgentLoop
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.token_latency import RequestObserver
from penstock.engine.ipc.client import EngineClient
from penstock.engine.ipc.server import EngineServer
from penstock.engine.types import (
    EngineGauges,
    EngineInfo,
    TokenDelta,
    TokenOutput,
    TokenRequest,
)
from penstock.generation import Generator
from penstock.grammar.vocabulary import Vocabulary
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.servers.http_server import MODEL, Serving, serving

INFO = EngineInfo("scripted", 2048, 264, 256, 128, 16, 0, "fp")
TOKENIZER = tiny_tokenizer()
LETTERS = b"abcdefghijklmnopqrstuvwxyz"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"

Phase = Literal["head", "no body", "in body", "queued", "first token", "mid-stream", "last token"]
PHASES: tuple[Phase, ...] = Phase.__args__  # type: ignore[attr-defined]


class SteppedSource:
    """The only test double: each permitted step gives every open request its next letter."""

    info = INFO

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.steps = 0
        self.permits = threading.Semaphore(0)

    @property
    def has_work(self) -> bool:
        return bool(self.rows)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        pass

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        pass

    def submit(self, request: TokenRequest) -> None:
        self.rows[request.id] = [0, request.max_tokens]

    def abort(self, request_id: str) -> None:
        self.rows.pop(request_id, None)

    def step(self) -> list[TokenOutput]:
        if not self.permits.acquire(timeout=0.002):
            return []
        now = time.monotonic()
        chunks = []
        for request_id, row in list(self.rows.items()):
            token = LETTERS[row[0] % len(LETTERS)]
            row[0] += 1
            last = row[0] == row[1]
            if last:
                del self.rows[request_id]
            finish = "length" if last else None
            chunks.append(TokenOutput(request_id, (TokenDelta(token),), now, 0, finish))
        self.steps += 1
        return chunks

    def gauges(self) -> EngineGauges:
        return EngineGauges(sequences_running=len(self.rows))

    def prepare(self) -> bool:
        return False


class Stack:
    """Everything from the HTTP socket to the token source."""

    def __init__(self, serving: Serving, engine: EngineServer, client: EngineClient) -> None:
        self.serving = serving
        self.engine = engine
        self.client = client
        self.until = serving.until
        self.port = int(serving.url.rpartition(":")[2])

    async def until_idle(self, source: SteppedSource, num_tasks: int) -> None:
        """Wait until nothing is left. If something is, the test times out."""
        state = self.serving.server.server_state
        await self.until(lambda: not source.rows)
        await self.until(lambda: not any(c.open_ids for c in self.engine._connections.values()))
        await self.until(lambda: not self.engine._coalescer._held)
        await self.until(lambda: self.client.in_flight == 0)
        await self.until(lambda: not state.tasks and not state.connections)
        await self.until(lambda: len(asyncio.all_tasks()) <= num_tasks)
        metrics = self.serving.services.metrics
        assert metrics is not None
        in_flight = metrics.in_flight.collect()
        assert not any(sample.value for family in in_flight for sample in family.samples)


@asynccontextmanager
async def stack(path: Path, source: SteppedSource) -> AsyncIterator[Stack]:
    engine = EngineServer(source, str(path))
    thread = threading.Thread(target=engine.run)
    thread.start()
    metrics = Metrics()
    client = EngineClient(str(path), RequestObserver(metrics))
    await client.wait_ready()
    generator = Generator(client, TOKENIZER, tiny_template())
    try:
        async with serving(models={MODEL: AgentLoop(generator)}, metrics=metrics) as served:
            yield Stack(served, engine, client)
    finally:
        await client.close()
        engine.stop()
        await asyncio.to_thread(thread.join)


def body(*, stream: bool, max_tokens: int, **fields: object) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps(
        {"messages": messages, "stream": stream, "max_tokens": max_tokens, **fields}
    ).encode()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
async def test_disconnect_releases_everything(
    phase: Phase, stream: bool, n: int, tmp_path: Path
) -> None:
    source = SteppedSource()
    async with stack(tmp_path / "s", source) as served:
        num_tasks = len(asyncio.all_tasks())
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        sent = body(stream=stream, max_tokens=8, n=n)
        whole = HEAD % len(sent) + sent
        cut = {"head": 30, "no body": len(whole) - len(sent), "in body": len(whole) - 9}
        writer.write(whole[: cut.get(phase, len(whole))])
        if phase in ("queued", "first token", "mid-stream", "last token"):
            await served.until(lambda: len(source.rows) == n)
        steps = {"first token": 1, "mid-stream": 5, "last token": 8}.get(phase, 0)
        for _ in range(steps):
            source.permits.release()
        await served.until(lambda: source.steps == steps)
        if stream and steps:
            await reader.readuntil(b'"content":"a"')
        else:
            await writer.drain()
        writer.transport.abort()
        await served.until_idle(source, num_tasks)


@pytest.mark.parametrize("stream", [False, True])
async def test_immediate_stop_releases_everything(stream: bool, tmp_path: Path) -> None:
    source = SteppedSource()
    async with stack(tmp_path / "s", source) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        sent = body(stream=stream, max_tokens=8)
        writer.write(HEAD % len(sent) + sent)
        await served.until(lambda: len(source.rows) == 1)
        source.permits.release()
        await served.until(lambda: source.steps == 1)
        served.serving.server.stop()
        served.serving.server.stop()
        assert b"[DONE]" not in await reader.read(-1)
        writer.close()
        await served.until(lambda: not source.rows and served.client.in_flight == 0)


@pytest.mark.parametrize(("count", "n"), [(160, 1), (40, 4)])
async def test_slow_readers_get_every_token_in_fewer_frames(
    count: int, n: int, tmp_path: Path
) -> None:
    """The clients read nothing until the engine has finished all streams."""
    tokens = 200
    source = SteppedSource()
    async with stack(tmp_path / "s", source) as served:
        for listener in served.serving.server.servers[
            0
        ].sockets:  # accepted connections inherit the option
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        num_tasks = len(asyncio.all_tasks())
        loop = asyncio.get_running_loop()
        sent = body(stream=True, max_tokens=tokens, n=n)
        socks = []
        for _ in range(count):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", served.port))
            await loop.sock_sendall(sock, HEAD % len(sent) + sent)
            socks.append(sock)
        await served.until(lambda: len(source.rows) == count * n)
        for _ in range(tokens):
            source.permits.release()
        await served.until(lambda: not source.rows)
        expected = "".join(chr(LETTERS[k % len(LETTERS)]) for k in range(tokens))
        frames = 0
        for sock in socks:
            said = [""] * n
            for data in await _events(loop, sock):
                (choice,) = json.loads(data)["choices"]
                said[choice["index"]] += choice["delta"].get("content") or ""
                frames += 1
            assert said == [expected] * n
            sock.close()
        assert frames < count * n * tokens / 2
        await served.until_idle(source, num_tasks)


async def _events(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> list[bytes]:
    """Return the JSON of all chunks of an answer."""
    raw = bytearray()
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        raw += await loop.sock_recv(sock, 65536)
    whole = bytearray()
    rest = bytes(raw).partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    events = bytes(whole).removesuffix(b"data: [DONE]\n\n").split(b"\n\n")
    return [event.removeprefix(b"data: ") for event in events if event.startswith(b"data: ")]
