"""The server's end of the socket to a container's init.

Sends requests, hands each reply to the request that waits for it, and ends the container if a
packet does not follow the protocol. No method blocks the event loop.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from penstock.sandbox.errors import SandboxDied
from penstock.sandbox.wire import MAX_FRAME, Frame, FrameError, Kind, Payload

# Packets that are read before other work of the event loop gets its turn.
_PACKETS_PER_TURN = 16


class _Packet:
    """A packet to send, and the descriptors that go with it."""

    __slots__ = ("data", "descriptors")

    def __init__(self, data: bytes, descriptors: Sequence[int]) -> None:
        self.data = data
        self.descriptors = tuple(descriptors)


class Connection:
    """The connection to one init. `died` is done when it has ended.

    `on_exit`: called with the request number and payload of each notice that a program has exited.
    """

    def __init__(self, control: socket.socket, on_exit: Callable[[int, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._on_exit = on_exit
        self._numbers = itertools.count(1)
        self._outgoing: deque[_Packet] = deque()
        self._drained: asyncio.Future[None] | None = None
        self._replies: dict[int, asyncio.Queue[Frame | None]] = {}
        self.died: asyncio.Future[None] = self._loop.create_future()
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._receive)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._control.fileno()

    @contextmanager
    def request(self, number: int | None = None) -> Iterator[int]:
        """Return the number of a new request, whose replies are kept until the block ends."""
        number = next(self._numbers) if number is None else number
        self._replies[number] = asyncio.Queue()
        try:
            yield number
        finally:
            del self._replies[number]

    async def ask(self, kind: Kind, payload: Payload, reply: Kind) -> Frame:
        """Send a request and return its one reply. Raises SandboxDied."""
        with self.request() as number:
            await self.send(payload.frame(kind, number))
            return await self.reply(number, reply)

    async def reply(self, number: int, *kinds: Kind) -> Frame:
        """Return the next reply, which must be of one of these kinds. Raises SandboxDied."""
        frame = await self._replies[number].get()
        if frame is None:
            raise SandboxDied("the sandbox has ended")
        if frame.kind not in kinds:
            raise self.broken(f"a reply of kind {frame.kind.name}")
        return frame

    @contextmanager
    def reading(self) -> Iterator[None]:
        """End the container if the block finds that a payload is malformed: raises SandboxDied."""
        try:
            yield
        except FrameError as error:
            raise self.broken(str(error)) from error

    def broken(self, reason: str) -> SandboxDied:
        """End the container and return the error that says why."""
        self.close()
        return SandboxDied(f"the sandbox broke the protocol: {reason}")

    async def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet; return when the socket has taken it, so that memory stays bounded.

        A packet of a cancelled call that is still queued is not sent. Raises SandboxDied.
        """
        queued = self._queue(packet, descriptors)
        try:
            while self._outgoing and not self.died.done():
                if self._drained is None:
                    self._drained = self._loop.create_future()
                    self._loop.add_writer(self._control.fileno(), self._flush)
                await asyncio.shield(self._drained)
        except asyncio.CancelledError:
            self._outgoing = deque(other for other in self._outgoing if other is not queued)
            raise
        if self.died.done():
            raise SandboxDied("the sandbox has ended")

    def notify(self, kind: Kind, payload: Payload, number: int | None = None) -> None:
        """Queue a packet. Its reply, if there is one, is ignored."""
        if not self.died.done():
            self._queue(payload.frame(kind, next(self._numbers) if number is None else number), ())

    def close(self) -> None:
        """Close the socket, which ends the container, and wake all who wait."""
        if self.died.done():
            return
        self.died.set_result(None)
        self._loop.remove_reader(self._control.fileno())
        self._wake_senders()
        self._control.close()
        self._outgoing.clear()
        for replies in self._replies.values():
            replies.put_nowait(None)

    def _queue(self, packet: bytes, descriptors: Sequence[int]) -> _Packet:
        if self.died.done():
            raise SandboxDied("the sandbox has ended")
        queued = _Packet(packet, descriptors)
        self._outgoing.append(queued)
        self._flush()
        return queued

    def _flush(self) -> None:
        while self._outgoing:
            packet = self._outgoing[0]
            rights = array.array("i", packet.descriptors)
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
            try:
                self._control.sendmsg([packet.data], control)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.close()
                return
            self._outgoing.popleft()
        self._wake_senders()

    def _wake_senders(self) -> None:
        if self._drained is not None:
            self._loop.remove_writer(self._control.fileno())
            self._drained.set_result(None)
            self._drained = None

    def _receive(self) -> None:
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet = self._control.recv(MAX_FRAME + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            try:
                self._dispatch(Frame.decode(packet))
            except FrameError:
                self.close()
                return

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind is Kind.EXITED:
            self._on_exit(frame.request, frame.payload)
        elif (replies := self._replies.get(frame.request)) is not None:
            replies.put_nowait(frame)
