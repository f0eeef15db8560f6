"""One program that runs in a container, as the server sees it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec

STREAM_LIMIT = 256 * 1024


class ExitStatus(msgspec.Struct, frozen=True):
    """How a program ended. One of both is None: the exit code, or the number of the signal."""

    code: int | None
    signal: int | None

    @classmethod
    def from_wait(cls, status: int) -> ExitStatus:
        """Return the exit status in a status of waitpid()."""
        if os.WIFSIGNALED(status):
            return cls(None, os.WTERMSIG(status))
        return cls(os.WEXITSTATUS(status) if os.WIFEXITED(status) else None, None)


class SandboxProcess:
    """A program in a container.

    - `pid`: the number of the process inside the container.
    - `stdout`, `stderr`: the output of the program and its children.
    """

    def __init__(
        self, handle: int, ends: ServerEnds, send_signal: Callable[[int, int], Awaitable[None]]
    ) -> None:
        self._send_signal = send_signal
        self._ends = ends
        self.handle = handle
        self.pid = 0
        self.stdout = ends.stdout
        self.stderr = ends.stderr
        self.exit: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()

    @property
    def channel(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The server's end of the socket that the program has as descriptor 3, or None."""
        return self._ends.channel

    async def wait(self) -> ExitStatus:
        """Return how the program ended, when it has ended. Its children may still run.

        If the container dies, that is a death by SIGKILL.
        """
        return await asyncio.shield(self.exit)

    async def signal(self, number: int) -> None:
        """Send a signal to the program and all of its descendants, also detached ones.

        With SIGKILL, none of them is left. Raises SandboxDied.
        """
        await self._send_signal(self.handle, number)

    def close(self) -> None:
        """Close the server's ends of the pipes and the channel."""
        self._ends.close()


class ServerEnds:
    """The server's ends of a program's pipes, and the program's ends until it has started."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader(limit=STREAM_LIMIT)
        self.stderr = asyncio.StreamReader(limit=STREAM_LIMIT)
        self.channel: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._program_ends: list[int] = []

    async def open(self, *, channel: bool) -> list[int]:
        """Make the pipes; return the program's ends, valid until close_program_ends()."""
        loop = asyncio.get_running_loop()
        for reader in (self.stdout, self.stderr):
            read_end, write_end = os.pipe2(os.O_CLOEXEC)
            self._program_ends.append(write_end)
            transport, _ = await loop.connect_read_pipe(
                lambda reader=reader: asyncio.StreamReaderProtocol(reader),  # type: ignore[misc]
                os.fdopen(read_end, "rb", 0),
            )
            self._transports.append(transport)
        if channel:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._program_ends.append(theirs.detach())
            self.channel = await asyncio.open_unix_connection(sock=ours, limit=STREAM_LIMIT)
            self._transports.append(self.channel[1].transport)
        return self._program_ends

    def close_program_ends(self) -> None:
        """Close the program's ends in this process."""
        for descriptor in self._program_ends:
            os.close(descriptor)
        self._program_ends.clear()

    def close(self) -> None:
        """Close everything."""
        self.close_program_ends()
        for transport in self._transports:
            transport.close()
