"""One decoding process, as the API process sees it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from penstock.config import decoder_environment
from penstock.media.protocol import LENGTH, Answer, Job, Ready, WorkerSetup, decode, encode

PROGRAM: Final = ("-m", "penstock.media.worker")
START_TIMEOUT_S: Final = 60.0
WALL_TIME_FACTOR: Final = 4
"""Wall-clock time limit of an item, as a multiple of its limit of CPU time, which alone would not
end a process that waits."""
EXIT_TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 1024**3
KILLED: Final = tuple(-n for n in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Exit codes of a process that something outside has killed. Its own limits end it with others."""
_M = TypeVar("_M", bound=msgspec.Struct)


class StartFault(Exception):
    """The process did not start. The message is for the log."""


class StartKilled(StartFault):
    """Something outside has killed the process while it started."""


class ChildEnded(Exception):
    """The process ended while it decoded an item. The message says why, for the client."""


class ChildKilled(ChildEnded):
    """Something else than the item has ended the process."""


class DecodingChild:
    """A running process. It decodes one item at a time."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection

    @classmethod
    async def start(cls, setup: WorkerSetup, program: Sequence[str]) -> DecodingChild:
        """Start a process and wait until it is sealed. Raises StartFault, StartKilled."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, *program],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=decoder_environment(),
                    start_new_session=True,  # Ctrl-C must reach the API process only
                )
            except OSError as error:
                ours.close()
                raise StartFault(str(error)) from None
        child = cls(process, ours)
        try:
            ready = await child._ask(setup, Ready, START_TIMEOUT_S)
            if ready.fault:
                raise StartFault(ready.fault)
        except ChildKilled:
            await child.close()
            raise StartKilled("it was killed while it started") from None
        except ChildEnded:
            await child.close()
            raise StartFault("it ended, or did not answer in time") from None
        except BaseException:
            await child.close()
            raise
        return child

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def answer(self, job: Job, cpu_time_s: int) -> Answer:
        """Let the process decode and prepare an item. After an exception or a cancellation the
        process must be closed. Raises ChildEnded, ChildKilled."""
        answer = await self._ask(job, Answer, cpu_time_s * WALL_TIME_FACTOR)
        try:
            answer.check(job.kind)
        except msgspec.ValidationError:
            raise ChildEnded("cannot be decoded") from None
        return answer

    def kill(self) -> None:
        """Kill the process. `answer` then raises ChildKilled."""
        self._process.kill()

    async def close(self) -> None:
        """Kill the process, and wait until it has ended."""
        self._process.kill()
        self._connection.close()
        await asyncio.to_thread(self._process.wait)

    async def _ask(self, message: msgspec.Struct, kind: type[_M], timeout_s: float) -> _M:
        try:
            return await asyncio.wait_for(self._exchange(message, kind), timeout_s)
        except asyncio.TimeoutError:
            raise ChildEnded("takes too long to decode") from None
        except (OSError, EOFError):
            raise await self._exit_fault() from None
        except msgspec.DecodeError:
            raise ChildEnded("cannot be decoded") from None

    async def _exchange(self, message: msgspec.Struct, kind: type[_M]) -> _M:
        loop = asyncio.get_running_loop()
        body = encode(message)
        await loop.sock_sendall(self._connection, LENGTH.pack(len(body)))
        await loop.sock_sendall(self._connection, body)
        (size,) = LENGTH.unpack(await self._receive(LENGTH.size))
        return decode(await self._receive(size), kind)

    async def _receive(self, size: int) -> bytearray:
        """Read `size` bytes. Raises EOFError, OSError, and DecodeError for an impossible size."""
        if size > MAX_ANSWER_BYTES:
            raise msgspec.DecodeError("the answer is too long")
        loop = asyncio.get_running_loop()
        data = bytearray(size)
        with memoryview(data) as view:
            done = 0
            while done < size:
                count = await loop.sock_recv_into(self._connection, view[done:])
                if count == 0:
                    raise EOFError
                done += count
        return data

    async def _exit_fault(self) -> ChildEnded:
        """Return the exception for a process that has closed its connection."""
        try:
            code = await asyncio.to_thread(self._process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ChildEnded("cannot be decoded")
        if code in KILLED:
            return ChildKilled("takes too much memory to decode")
        if code == -signal.SIGXCPU:
            return ChildEnded("takes too long to decode")
        return ChildEnded("cannot be decoded")
