"""The stdio transport: an MCP server as a child process.

The official package's transport has no limit on the size of a message, and its children outlive a
parent that is killed; this one has both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.mcp.config import ProcessSource
from penstock.agent.mcp.limits import MAX_GARBAGE_LINES, MAX_MESSAGE_BYTES, ServerFault

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

log = logging.getLogger(__name__)

GRACE_S: Final = 1.0
"""Seconds that a server has to end after its standard input closed, and again after SIGTERM."""

_POLL_S: Final = 0.01
_CHUNK_BYTES: Final = 64 * 1024
_STDERR_CHARS: Final = 400


class ServerProcess:
    """The child process of one connection. `fault`: why the connection ended, "" while it lives."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
        assert process.stdin is not None and process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._lifeline = lifeline
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._last_lines: deque[str] = deque(maxlen=3)
        self.fault = ""

    @property
    def pid(self) -> int:
        """Process id, and the id of the group that all processes of the server belong to."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of the process's standard error."""
        return "; ".join(self._last_lines)[-_STDERR_CHARS:]

    async def read_messages(self, out: Any) -> None:
        """Pass each message of the server to the stream `out`, then close it. A fault of the server
        ends its connection."""
        garbage = 0
        async with out:
            try:
                async for line in self._lines():
                    message = _message(line)
                    if message is not None:
                        garbage = 0
                        await out.send(message)
                        continue
                    garbage += 1
                    if garbage >= MAX_GARBAGE_LINES:
                        raise ServerFault("its standard output is not JSON-RPC")
            except (ServerFault, OSError) as error:
                self.fault = str(error)
                self._lifeline.close()

    async def write_messages(self, messages: Any) -> None:
        """Write each message of the stream `messages` to the server's standard input."""
        async with messages:
            with suppress(OSError):  # the server ended: read_messages notices
                async for item in messages:
                    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                    self._stdin.write(text.encode() + b"\n")
                    await self._stdin.drain()

    async def read_errors(self) -> None:
        """Keep the last lines of standard error. Ends with the process."""
        rest = b""
        while chunk := await self._stderr.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-_CHUNK_BYTES:]
            self._last_lines.extend(text for line in lines if (text := _printable(line)))

    async def stop(self) -> None:
        """End the process group: standard input closes, then SIGTERM, then SIGKILL."""
        self._stdin.close()
        if not await self._ended():
            self._signal_group(signal.SIGTERM)
            await self._ended()
        self._lifeline.close()  # the guard kills the rest of the group
        if not await self._ended():
            self._signal_group(signal.SIGKILL)
            await self._ended()
        # A process that left the group may hold the pipes open. Only the transport closes ours.
        transport: Any = getattr(self._process, "_transport", None)
        if transport is not None:
            transport.close()

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _ended(self) -> bool:
        """Return whether the process ends within the grace time. `Process.wait` would also wait for
        the ends of its pipes."""
        deadline = asyncio.get_running_loop().time() + GRACE_S
        while self._process.returncode is None:
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    async def _lines(self) -> AsyncIterator[bytes]:
        buffer, searched = bytearray(), 0
        while chunk := await self._stdout.read(_CHUNK_BYTES):
            buffer += chunk
            while (end := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                searched = 0
                if line.strip():
                    yield line
            searched = len(buffer)
            if searched > MAX_MESSAGE_BYTES:
                raise ServerFault(f"sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")


@asynccontextmanager
async def started_process(source: ProcessSource) -> AsyncIterator[ServerProcess]:
    """Run the command of `source` until the block ends. Raises OSError."""
    from mcp.client.stdio import get_default_environment

    ours, theirs = socket.socketpair()
    try:
        with theirs:
            guard = Path(__file__).with_name("stdio_guard.py")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(guard), str(theirs.fileno()),
                source.command, *source.args,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=get_default_environment() | source.env,
                cwd=source.work_dir,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        child = ServerProcess(process, ours)
        errors = asyncio.ensure_future(child.read_errors())
        try:
            yield child
        finally:
            await _finished(child.stop())
            await _finished(asyncio.wait({errors}, timeout=GRACE_S))
            errors.cancel()
    finally:
        ours.close()


@asynccontextmanager
async def process_streams(child: ServerProcess) -> AsyncIterator[TransportStreams]:
    """Yield the streams of messages from and to a running server."""
    import anyio
    from mcp.shared.message import SessionMessage

    to_client, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    async with AsyncExitStack() as streams:
        for stream in (to_client, from_server, to_server, from_client):
            await streams.enter_async_context(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child.read_messages, to_client)
            tasks.start_soon(child.write_messages, from_client)
            try:
                yield from_server, to_server
            finally:
                tasks.cancel_scope.cancel()


async def _finished(work: Any) -> None:
    """Wait for bounded work, even if this task is cancelled meanwhile."""
    import anyio

    with anyio.CancelScope(shield=True):
        await work


def _message(line: bytes) -> Any:
    """Return a line as a message, None if it is none."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


def _printable(line: bytes) -> str:
    text = line[-_STDERR_CHARS:].decode(errors="replace").strip()
    return "".join(c if c.isprintable() else "?" for c in text)
