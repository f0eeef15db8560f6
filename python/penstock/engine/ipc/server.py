"""The engine's end of the socket: one thread reads frames, runs steps and writes frames."""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final, TypeVar

import msgspec

from penstock.base.errors import ServiceError
from penstock.engine.ipc.messages import (
    Abort,
    AdapterAdded,
    Adapters,
    AddAdapter,
    Admitted,
    AskAdapters,
    AskGauges,
    ChangeWeights,
    EmbedOutputs,
    FrameReader,
    FromEngine,
    Gauges,
    Hello,
    ImageOutputs,
    Refused,
    RetireAdapter,
    SetTokenizer,
    SpeechOutputs,
    Submit,
    SubmitDecoder,
    SubmitEmbed,
    SubmitImages,
    SubmitSpeech,
    TokenOutputs,
    WeightsChanged,
    frame,
    to_engine_decoder,
)
from penstock.engine.output_coalescing import OutputCoalescer
from penstock.engine.protocol import IDLE_S, Core
from penstock.engine.throttled_log import ThrottledLog
from penstock.engine.types import (
    AdapterSource,
    EmbedOutput,
    EmbedRequest,
    ImageOutput,
    ImageRequest,
    SpeechOutput,
    SpeechRequest,
    StepOutput,
    TokenOutput,
    TokenRequest,
)

_A = TypeVar("_A")
_R = TypeVar("_R", TokenRequest, EmbedRequest, SpeechRequest, ImageRequest)

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
MAX_READ_BYTES = 8 * 1024 * 1024
"""Most bytes that are read from one connection before a step. The system's socket buffer holds some
200 kB, less than a long prompt: if a read ended there, the rest of the prompt would wait for a
step."""
UNWATCHED: Final = nullcontext()
ACCEPT_PAUSE_S = 0.01
MAX_UNSENT_BYTES = 64 * 1024 * 1024


class Connection:
    """The connection of one API process. `open_ids`: maps the ids of its unfinished requests to
    their ids in the engine."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.frames = FrameReader()
        self.submits = SubmitDecoder()
        self.unsent = bytearray()
        self.open_ids: dict[str, str] = {}


class EngineServer:
    """Serves `core` on a Unix socket until `stop` is called, or until all connections are closed
    after `drain`. While there is no work, it blocks in select. `watch`: a context that is entered
    for each step."""

    def __init__(
        self, core: Core, socket_path: str, watch: AbstractContextManager[None] = UNWATCHED
    ) -> None:
        self._core = core
        self._watch = watch
        self._coalescer = OutputCoalescer()
        self._connections: dict[int, Connection] = {}
        self._owners: dict[
            str, tuple[Connection, str]
        ] = {}  # id in the engine -> (connection, id in the connection)
        self._accepted = 0
        self._told = core.info
        self._not_taken = ThrottledLog(log)
        self._stopping = False
        self._draining = False
        self._may_prepare = True
        self._preparing = False
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._listener = _listen(socket_path)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_writer.setblocking(False)
        core.call_when_ready(self._wake)

    def stop(self) -> None:
        """End `run` after the current step. Callable from any thread and signal handler."""
        self._stopping = True
        self._wake()

    def drain(self) -> None:
        """Accept no new connection, and end `run` when the last connection is closed: API processes
        close theirs when their answers are finished. Callable from any thread."""
        self._draining = True
        self._wake()

    def run(self) -> None:
        """Serve until `stop`, or until the last connection is closed after `drain`."""
        while not self._stopping:
            if self._draining:
                self._stop_listening()
                if not self._connections:
                    break
            news = self._handle_sockets(self._patience_s())
            if self._core.has_work and not self._stopping:
                with self._watch:
                    made = self._core.step()
                self._deliver(self._coalescer.coalesce(made))
                self._tell_changes()
                self._may_prepare, self._preparing = True, False
            elif news:
                self._preparing = False
            elif self._may_prepare:
                self._may_prepare = self._preparing = self._core.prepare()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._stop_listening()

    def _tell_changes(self) -> None:
        """Send the engine's info to all connections if it has changed."""
        if self._told is self._core.info:
            return
        self._told = self._core.info
        for connection in list(self._connections.values()):
            self._send(connection, Hello(self._told))

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # the socket is full, so `run` wakes up anyway
            self._wake_writer.send(b"\0")

    def _patience_s(self) -> float | None:
        if self._core.has_work or self._preparing:
            return 0
        return IDLE_S if self._may_prepare else None

    def _stop_listening(self) -> None:
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()

    def _handle_sockets(self, timeout_s: float | None) -> bool:
        """Wait up to `timeout_s` for events on the sockets (None: no limit) and handle them. Return
        False if there were none."""
        ready = self._selector.select(timeout_s)
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_reader:
                self._wake_reader.recv(64)
            else:
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    self._flush(connection)
                if events & selectors.EVENT_READ:
                    self._read(connection)
        return bool(ready)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # such as no free descriptor: the client waits, others go on
            self._not_taken.note(f"a connection cannot be taken: {error}", time.monotonic())
            time.sleep(ACCEPT_PAUSE_S)
            return
        sock.setblocking(False)
        self._accepted += 1
        connection = Connection(self._accepted, sock)
        self._connections[connection.number] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._send(connection, Hello(self._told))

    def _read(self, connection: Connection) -> None:
        left = MAX_READ_BYTES
        try:
            while left > 0 and connection.number in self._connections:
                data = connection.sock.recv(READ_BYTES)
                if not data:
                    self._drop(connection)
                    return
                left -= len(data)
                self._take(connection, data)
        except BlockingIOError:
            return
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors, too
            log.warning("connection %d: %s", connection.number, error)
            self._drop(connection)

    def _take(self, connection: Connection, data: bytes) -> None:
        for body in connection.frames.feed(data):
            if connection.number not in self._connections:  # an answer could not be sent
                return
            self._handle(connection, body)

    def _handle(self, connection: Connection, body: bytes) -> None:
        match to_engine_decoder.decode(body):
            case Submit() as message:
                self._submit(connection, connection.submits.request(message), self._core.submit)
            case SubmitEmbed(embed_request):
                self._submit(connection, embed_request, self._core.embed)
            case SubmitSpeech(speech_request):
                self._submit(connection, speech_request, self._core.speak)
            case SubmitImages(image_request):
                self._submit(connection, image_request, self._core.paint)
            case Abort(request_id):
                engine_id = connection.open_ids.pop(request_id, None)
                if engine_id is not None:
                    self._abort(engine_id)
            case SetTokenizer(vocabulary):
                self._core.set_tokenizer(vocabulary)
            case AddAdapter(ticket, source):
                self._add_adapter(connection, ticket, source)
            case RetireAdapter(revision):
                self._core.retire_adapter(revision)
            case AskAdapters():
                self._send(connection, Adapters(self._core.adapters()))
            case ChangeWeights(ticket, order):
                done = self._core.change_weights(order)
                self._answer(connection, ticket, done, partial(WeightsChanged, ticket))
            case AskGauges():
                self._send(connection, Gauges(self._core.gauges()))

    def _add_adapter(self, connection: Connection, ticket: str, source: AdapterSource) -> None:
        """Load an adapter and send the answer when the load ends. The load continues if the
        connection is closed."""
        loaded = self._core.add_adapter(source)
        self._answer(connection, ticket, loaded, partial(AdapterAdded, ticket))

    def _answer(
        self,
        connection: Connection,
        ticket: str,
        work: Future[_A],
        message: Callable[[_A], FromEngine],
    ) -> None:
        """Send the result of `work` as a `message`, or its error, when it ends. Send nothing if the
        connection is closed by then."""

        def answer(done: Future[_A]) -> None:
            if connection.number not in self._connections:
                return
            error = done.exception()
            if error is None:
                self._send(connection, message(done.result()))
            else:
                assert isinstance(error, ServiceError)
                self._send(connection, _refused(ticket, error))

        work.add_done_callback(answer)

    def _submit(self, connection: Connection, request: _R, submit: Callable[[_R], None]) -> None:
        submitted = request
        if request.id in self._owners:  # ids are unique only within a connection
            submitted = msgspec.structs.replace(request, id=f"{connection.number}:{request.id}")
        try:
            submit(submitted)
        except ServiceError as error:
            self._send(connection, _refused(request.id, error))
        else:
            connection.open_ids[request.id] = submitted.id
            self._owners[submitted.id] = connection, request.id
            if isinstance(submitted, TokenRequest):
                self._coalescer.add(submitted)
                self._send(connection, Admitted(request.id))

    def _abort(self, engine_id: str) -> None:
        del self._owners[engine_id]
        self._core.abort(engine_id)
        self._coalescer.forget(engine_id)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Send each connection one frame with its outputs of a step. Outputs of requests that are
        no longer open are dropped."""
        made: defaultdict[Connection, list[StepOutput]] = defaultdict(list)
        for output in outputs:
            owner = self._owners.get(output.id)
            if owner is None:
                continue
            connection, request_id = owner
            if output.finish is not None:
                del self._owners[output.id], connection.open_ids[request_id]
            if output.id != request_id:
                output = msgspec.structs.replace(output, id=request_id)
            made[connection].append(output)
        for connection, items in made.items():
            self._send(connection, _outputs_message(items))

    def _send(self, connection: Connection, message: FromEngine) -> None:
        connection.unsent += frame(message)
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.unsent:
                sent = connection.sock.send(connection.unsent)
                del connection.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(connection)
            return
        if len(connection.unsent) > MAX_UNSENT_BYTES:
            log.error("connection %d does not read; dropped", connection.number)
            self._drop(connection)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        if self._selector.get_key(connection.sock).events != wanted:
            self._selector.modify(connection.sock, wanted, connection)

    def _drop(self, connection: Connection) -> None:
        """Close a connection and abort its requests. Do nothing if it is closed already."""
        if self._connections.pop(connection.number, None) is None:
            return
        self._selector.unregister(connection.sock)
        connection.sock.close()
        for engine_id in connection.open_ids.values():
            self._abort(engine_id)
        connection.open_ids.clear()


def _refused(request_id: str, error: ServiceError) -> Refused:
    return Refused(
        id=request_id,
        status=error.status,
        kind=error.kind,
        code=error.code,
        message=error.message,
        field=error.field,
        retry_after_s=error.retry_after_s,
    )


def _outputs_message(items: list[StepOutput]) -> FromEngine:
    """Return the message for `items`, which are all of one type."""
    match items[0]:
        case TokenOutput():
            return TokenOutputs(tuple(one for one in items if isinstance(one, TokenOutput)))
        case EmbedOutput():
            return EmbedOutputs(tuple(one for one in items if isinstance(one, EmbedOutput)))
        case SpeechOutput():
            return SpeechOutputs(tuple(one for one in items if isinstance(one, SpeechOutput)))
        case ImageOutput():
            return ImageOutputs(tuple(one for one in items if isinstance(one, ImageOutput)))


def _listen(path: str) -> socket.socket:
    """Return a listening Unix socket that only this user can open."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(umask)
    listener.listen(64)
    listener.setblocking(False)
    return listener
