"""The outputs of programs in a container, kept within a limit however much the programs write."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHUNK_BYTES = 64 * 1024
MAX_UTF8_BYTES = 4  # per character


class CappedText:
    """The beginning and the end of an output. At most `max_chars` characters are kept."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._half_bytes = max(1, max_chars // 2) * MAX_UTF8_BYTES
        self._head = bytearray()
        self._tail = bytearray()
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether further output displaces earlier output."""
        return self._size_bytes > 2 * self._half_bytes

    def write(self, data: bytes) -> None:
        self._size_bytes += len(data)
        room = self._half_bytes - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half_bytes:
            del self._tail[: -self._half_bytes]

    def text(self) -> str:
        """Return the output, with a note in place of the part that was cut."""
        kept_bytes = len(self._head) + len(self._tail)
        if kept_bytes == self._size_bytes:
            text = decoded(bytes(self._head + self._tail))
            if len(text) <= self._max_chars:
                return text
        half = self._max_chars // 2
        head = decoded(bytes(self._head))[:half]
        rest = self._tail if self._tail else self._head
        tail = decoded(bytes(rest))[-half:] if half else ""
        shown_bytes = len(head.encode()) + len(tail.encode())
        return f"{head}\n[... {max(0, self._size_bytes - shown_bytes)} bytes cut ...]\n{tail}"

    def last_lines(self, num_lines: int) -> list[str]:
        return self.text().splitlines()[-num_lines:]


def decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


class MarkedOutput:
    """An output of the interpreter, read until it ends and divided by markers.

    A marker is the random bytes that the interpreter writes at the end of a job. Output that
    arrives between two jobs (of threads, of child processes) belongs to the second one.
    """

    def __init__(self, reader: asyncio.StreamReader, max_chars: int) -> None:
        self._reader = reader
        self._max_chars = max_chars
        self._text = CappedText(max_chars)
        self._marker = b""
        self._held = b""  # the end of the output, in which the marker may have begun
        self._marked = asyncio.Event()
        self._finished: CappedText | None = None
        self._task = asyncio.create_task(self._read())

    def expect(self, marker: bytes) -> None:
        """Prepare for the output of a job, which ends with `marker`."""
        self._marker = marker
        self._marked.clear()

    async def take(self, grace_s: float) -> CappedText:
        """Return the output of the job. Without a marker or an end, it ends after `grace_s`."""
        if not self._task.done():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._marked.wait(), grace_s)
        if self._finished is None:
            self._finish(b"")
        finished, self._finished = self._finished, None
        assert finished is not None
        return finished

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def _finish(self, later: bytes) -> None:
        """End the text of the job; `later` belongs to the next one."""
        self._text.write(self._held)
        self._finished, self._text = self._text, CappedText(self._max_chars)
        self._text.write(later)
        self._marker = self._held = b""
        self._marked.set()

    async def _read(self) -> None:
        while data := await self._reader.read(CHUNK_BYTES):
            self._write(data)
            if self._text.is_full:  # a flood: let the other tasks of the server run in between
                await asyncio.sleep(0)
        self._marked.set()

    def _write(self, data: bytes) -> None:
        data = self._held + data
        end = data.find(self._marker) if self._marker else -1
        if end >= 0:
            later, self._held = data[end + len(self._marker) :], data[:end]
            self._finish(later)
            return
        split = len(data) - max(0, len(self._marker) - 1)
        self._text.write(data[: max(0, split)])
        self._held = data[max(0, split) :]
