"""The socket between API processes and the engine; only the token source is a double."""

from __future__ import annotations

import asyncio
import resource
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from penstock.base.errors import EngineFault, Overloaded, ServiceError, Unavailable
from penstock.dialog import Sampling
from penstock.engine.ipc import server as server_module
from penstock.engine.ipc.client import EngineClient
from penstock.engine.ipc.messages import (
    MAX_FRAME_BYTES,
    Abort,
    AddAdapter,
    AskGauges,
    FrameReader,
    Submit,
    SubmitDecoder,
    SubmitEncoder,
    frame,
    to_engine_decoder,
)
from penstock.engine.ipc.server import EngineServer
from penstock.engine.types import (
    AdapterSource,
    AdapterState,
    EngineGauges,
    EngineInfo,
    TokenDelta,
    TokenOutput,
    TokenRequest,
)
from penstock.grammar.vocabulary import Vocabulary

INFO = EngineInfo("counting", 1000, 1000, 4, 10, 16, 0, "test")


class CountingTokenSource:
    """A token source (the one allowed double): counts up, one token per request and step.

    Requests longer than `gate_after` tokens wait until `gate` is set, so that a test decides when
    they go on.
    """

    info = INFO

    def __init__(self) -> None:
        self.active: dict[str, list[int]] = {}
        self.aborted: list[str] = []
        self.taught: list[Vocabulary] = []
        self.hold = False
        self.held: dict[str, list[int]] = {}
        self.wake: Callable[[], None] = lambda: None
        self.gate = threading.Event()
        self.to_prepare = 0
        self.prepared_at_work = 0

    @property
    def has_work(self) -> bool:
        return bool(self.active)

    def call_when_ready(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def set_tokenizer(self, vocabulary: Vocabulary) -> None:
        self.taught.append(vocabulary)

    def submit(self, request: TokenRequest) -> None:
        if len(self.active) >= 4:
            raise Overloaded("the queue is full", retry_after_s=3)
        target = self.held if self.hold else self.active
        target[request.id] = [0, request.max_tokens]

    def abort(self, request_id: str) -> None:
        if self.active.pop(request_id, None) is not None:
            self.aborted.append(request_id)

    def step(self) -> list[TokenOutput]:
        chunks = []
        for request_id, state in list(self.active.items()):
            if state[1] > 100 and state[0] >= 3 and not self.gate.wait(0.001):
                continue
            state[0] += 1
            last = state[0] == state[1]
            if last:
                del self.active[request_id]
            finish = "length" if last else None
            chunks.append(TokenOutput(request_id, (TokenDelta(state[0]),), 0.0, finish=finish))
        return chunks

    def gauges(self) -> EngineGauges:
        return EngineGauges(sequences_running=len(self.active))

    def prepare(self) -> bool:
        self.prepared_at_work += self.has_work
        self.to_prepare -= 1
        return self.to_prepare > 0


def request(request_id: str, max_tokens: int = 5) -> TokenRequest:
    return TokenRequest(request_id, (1, 2), Sampling(), 0, max_tokens)


def submit_frame(request_id: str) -> bytes:
    return SubmitEncoder().frame(request(request_id), None)


async def tokens(stream: AsyncIterator[TokenOutput]) -> list[int]:
    return [delta.token_id async for chunk in stream for delta in chunk.tokens]


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[tuple[CountingTokenSource, EngineServer]]:
    source = CountingTokenSource()
    server = EngineServer(source, str(path))
    thread = threading.Thread(target=server.run, name="counting")
    thread.start()
    try:
        yield source, server
    finally:
        source.gate.set()
        server.stop()
        await asyncio.to_thread(thread.join)
        path.unlink(missing_ok=True)


@contextmanager
def accepted(path: Path) -> Iterator[tuple[CountingTokenSource, EngineServer, socket.socket]]:
    """Yield a server under the test's control, and a connection that it has accepted."""
    source = CountingTokenSource()
    server = EngineServer(source, str(path))
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        server._handle_sockets(None)
        try:
            yield source, server, sock
        finally:
            server.stop()
            server.run()


class LoadingTokenSource(CountingTokenSource):
    """An adapter load ends when a request is aborted, like a load that waited for room."""

    def __init__(self) -> None:
        super().__init__()
        self.load: Future[AdapterState] = Future()

    def add_adapter(self, source: AdapterSource) -> Future[AdapterState]:
        return self.load

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        if not self.load.done():
            self.load.set_exception(Unavailable("there is no room", retry_after_s=1))


async def until(condition: object) -> None:
    while not condition():  # type: ignore[operator]
        await asyncio.sleep(0.001)


async def test_concurrent_requests_get_their_own_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        client = EngineClient(str(tmp_path / "s"))
        assert await client.wait_ready() == INFO
        answers = await asyncio.gather(
            *(tokens(client.generate(request(str(n), n + 1))) for n in range(4))
        )
        assert answers == [list(range(1, n + 2)) for n in range(4)]
        assert client.in_flight == 0
        await client.close()


async def test_the_engine_prepares_itself_only_where_there_is_no_work(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as (source, _):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        await until(lambda: source.to_prepare < 0)  # asked once, had no tokens
        for pieces in (3, 2):  # a piece at a time until none is left, and again after a step
            source.to_prepare = pieces
            assert len(await tokens(client.generate(request("a", 50)))) == 50
            await until(lambda: source.to_prepare <= 0)
        assert source.to_prepare == 0
        assert source.prepared_at_work == 0
        await client.close()


async def test_two_connections_may_use_the_same_request_id(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        clients = [EngineClient(str(tmp_path / "s")) for _ in range(2)]
        for client in clients:
            await client.wait_ready()
        answers = await asyncio.gather(*(tokens(c.generate(request("same", 7))) for c in clients))
        assert answers == [list(range(1, 8))] * 2
        for client in clients:
            await client.close()


async def test_socket_is_private(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


async def test_closing_a_stream_early_aborts_its_request(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as (source, _):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        stream = client.generate(request("long", 10_000))
        async for _ in stream:
            break
        await stream.aclose()
        await until(lambda: source.aborted)
        assert not source.active
        await client.close()


async def test_requests_of_a_vanished_api_process_are_aborted(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as (source, _):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        streams = [client.generate(request(str(n), 10_000)) for n in range(3)]
        for stream in streams:
            await stream.__anext__()
        assert client._transport is not None
        client._transport.abort()
        await until(lambda: len(source.aborted) == 3)
        assert not source.active
        await client.close()


def test_a_connection_dropped_during_delivery_gets_no_more_frames(tmp_path: Path) -> None:
    source = LoadingTokenSource()
    server = EngineServer(source, str(tmp_path / "s"))
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        for sock in (first, second):
            sock.connect(str(tmp_path / "s"))
            server._handle_sockets(None)
            sock.sendall(submit_frame("a"))
            server._handle_sockets(None)
        second.sendall(frame(AddAdapter("ticket", AdapterSource("revision", "folder"))))
        server._handle_sockets(None)
        assert len(source.active) == 2
    # Both have left. Sending to the first one aborts its request, which ends the load whose
    # result is sent to the second one before the output of the step.
    server._deliver(source.step())
    assert source.load.done() and not source.active and not server._connections
    server.stop()
    server.run()


def test_frames_after_an_unsendable_answer_are_dropped(tmp_path: Path) -> None:
    with accepted(tmp_path / "s") as (source, server, sock):
        sock.sendall(frame(AskGauges()) + submit_frame("orphan"))
        sock.close()
        server._handle_sockets(None)
        assert not source.active and not server._connections


def test_everything_sent_is_read_before_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "READ_BYTES", 16)
    with accepted(tmp_path / "s") as (source, server, sock):
        sock.sendall(b"".join(submit_frame(name) for name in "abcd"))
        server._handle_sockets(None)
        assert list(source.active) == list("abcd")


def test_a_connection_that_sends_much_does_not_keep_the_engine_from_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = b"".join(submit_frame(name) for name in "abcd")
    monkeypatch.setattr(server_module, "READ_BYTES", 16)
    monkeypatch.setattr(server_module, "MAX_READ_BYTES", len(sent) // 2 + 16)
    with accepted(tmp_path / "s") as (source, server, sock):
        sock.sendall(sent)
        server._handle_sockets(None)
        assert list(source.active) == list("ab")
        server._handle_sockets(None)
        assert list(source.active) == list("abcd")


def test_an_engine_without_a_descriptor_for_a_new_connection_serves_the_others(
    tmp_path: Path,
) -> None:
    with accepted(tmp_path / "s") as (source, server, sock), socket.socket(socket.AF_UNIX) as other:
        other.connect(str(tmp_path / "s"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (other.fileno() + 1, hard))
        try:
            sock.sendall(submit_frame("served"))
            server._handle_sockets(None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert list(source.active) == ["served"] and len(server._connections) == 1
        server._handle_sockets(None)
        assert len(server._connections) == 2


async def test_refusal_reaches_its_request_with_status_and_code(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        held = [client.generate(request(str(n), 10_000)) for n in range(4)]
        for stream in held:
            await stream.admitted()
        with pytest.raises(ServiceError) as caught:
            await client.generate(request("one too many")).admitted()
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        assert caught.value.retry_after_s == 3
        await client.close()


async def test_requests_in_flight_fail_when_the_engine_goes_and_work_when_it_is_back(
    tmp_path: Path,
) -> None:
    client = EngineClient(str(tmp_path / "s"))
    with pytest.raises(Unavailable):
        await tokens(client.generate(request("early")))
    async with serving(tmp_path / "s") as (_, server):
        await client.wait_ready()
        stream = client.generate(request("cut off", 10_000))
        await stream.__anext__()
        server.stop()
        with pytest.raises(EngineFault):
            await tokens(stream)
    with pytest.raises(Unavailable):
        await tokens(client.generate(request("between")))
    async with serving(tmp_path / "s"):
        await client.wait_ready()
        assert await tokens(client.generate(request("after"))) == [1, 2, 3, 4, 5]
        await client.close()


async def test_no_request_is_sent_before_the_engine_says_hello(tmp_path: Path) -> None:
    """A dying engine accepts connections as long as its socket exists."""
    accepted = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        assert await reader.read() == b""
        writer.close()

    async with await asyncio.start_unix_server(accept, tmp_path / "engine.sock"):
        client = EngineClient(str(tmp_path / "engine.sock"))
        await accepted.wait()
        with pytest.raises(Unavailable, match="starting"):
            await asyncio.wait_for(tokens(client.generate(request("early"))), 10)
        await client.close()


async def test_garbage_on_the_socket_drops_that_connection_only(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        for garbage in [b"\xff" * 64, b"\x03\x00\x00\x00\xc1\xc1\xc1"]:
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
            writer.write(garbage)
            while await reader.read(4096):
                pass
            writer.close()
        assert await tokens(client.generate(request("still here"))) == [1, 2, 3, 4, 5]
        await client.close()


async def test_gauges_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path / "s"):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        assert (await client.gauges()).sequences_running == 0
        await client.close()


def test_frames_survive_any_cut_of_the_stream() -> None:
    data = b"".join(frame(Abort(str(n) * n)) for n in range(5))
    whole = FrameReader().feed(data)
    for size in range(1, 12):
        reader = FrameReader()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [body for piece in pieces for body in reader.feed(piece)] == whole


def test_the_sampling_of_many_choices_is_decoded_once() -> None:
    """The sampling parameters may bias every token of the vocabulary."""
    biased = Sampling(logit_bias=dict.fromkeys(range(1000), 1.0))
    sent = [msgspec.structs.replace(request(name), sampling=biased) for name in "ab"]
    encoder, decoder = SubmitEncoder(), SubmitDecoder()
    bodies = FrameReader().feed(b"".join(encoder.frame(one, None) for one in sent))
    messages = [to_engine_decoder.decode(body) for body in bodies]
    found = [decoder.request(message) for message in messages if isinstance(message, Submit)]
    assert found == sent and found[0].sampling is found[1].sampling


def test_oversized_frame_is_refused_before_it_is_stored() -> None:
    with pytest.raises(ValueError):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


async def test_a_restarted_engine_gets_the_vocabulary_again(tmp_path: Path) -> None:
    client = EngineClient(str(tmp_path / "s"))
    vocabulary = Vocabulary("{}", (1, 2))
    async with serving(tmp_path / "s") as (source, _):
        await client.wait_ready()
        client.set_tokenizer(vocabulary)
        client.set_tokenizer(vocabulary)
        await tokens(client.generate(request("after the teaching")))
        assert source.taught == [vocabulary]
    await until(lambda: not client.serving)
    async with serving(tmp_path / "s") as (source, _):
        await client.wait_ready()
        await tokens(client.generate(request("again")))
        assert source.taught == [vocabulary]
        await client.close()


async def test_work_without_a_frame_wakes_the_engine(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as (source, _):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        stream = client.generate(request("late"))
        source.hold = True
        waiting = asyncio.ensure_future(tokens(stream))
        await until(lambda: source.held)
        source.hold = False
        source.active.update(source.held)
        source.wake()
        assert await waiting == [1, 2, 3, 4, 5]
        await client.close()


async def test_drained_engine_ends_with_its_last_connection(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as (_, server):
        client = EngineClient(str(tmp_path / "s"))
        await client.wait_ready()
        answer = asyncio.create_task(tokens(client.generate(request("open", 50))))
        await asyncio.sleep(0)
        server.drain()
        assert await answer == list(range(1, 51))  # running requests are finished
        await until(lambda: server._listener.fileno() < 0)
        with pytest.raises(OSError):
            await asyncio.open_unix_connection(str(tmp_path / "s"))
        assert await tokens(client.generate(request("more"))) == [1, 2, 3, 4, 5]
        thread = next(t for t in threading.enumerate() if t.name.startswith("counting"))
        await client.close()
        await asyncio.to_thread(thread.join)
