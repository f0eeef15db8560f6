"""Runs commands in a new shell inside a container."""

from __future__ import annotations

import asyncio

from penstock.sandbox.captured_output import CHUNK_BYTES, CappedText
from penstock.sandbox.process import Sandbox, SandboxProcess
from penstock.sandbox.types import JobStatus, ShellJob, ShellResult
from penstock.sandbox.waiting import discard, finish

OUTPUT_GRACE_S = 0.2  # for output after the end of the shell: a background process may hold it
MAX_LEFT_OPEN = 16


class ShellOutputs:
    """Outputs that background processes still hold after their shell has ended.

    They are read on, so that these processes neither block nor receive SIGPIPE; the oldest are
    closed if there are too many.
    """

    def __init__(self) -> None:
        self._readers: list[asyncio.Task[None]] = []

    async def keep(self, reader: asyncio.Task[None]) -> None:
        self._readers = [task for task in self._readers if not task.done()]
        self._readers.append(reader)
        if len(self._readers) > MAX_LEFT_OPEN:
            await discard(self._readers.pop(0))

    async def close(self) -> None:
        while self._readers:
            await discard(self._readers.pop())


async def run_shell(
    sandbox: Sandbox,
    job: ShellJob,
    argv: list[str],
    environment: dict[str, str],
    *,
    spared: tuple[int, ...],
    outputs: ShellOutputs,
) -> ShellResult:
    """Run the shell `argv` and return its result without files.

    At the time-out, and if the caller is cancelled, all processes of the container are killed,
    except `spared` (the interpreter). Raises SandboxDied.
    """
    process = await sandbox.spawn(argv, environment)
    texts = CappedText(job.max_output_chars), CappedText(job.max_output_chars)
    readers = [
        asyncio.create_task(read_on(process.stdout, texts[0])),
        asyncio.create_task(read_on(process.stderr, texts[1])),
    ]
    leave = asyncio.ensure_future(process.wait())
    try:
        done, _ = await asyncio.wait({leave}, timeout=job.timeout_s)
        if not done:
            await sandbox.kill_all(keep=spared)
        status = await leave
        await asyncio.wait(readers, timeout=OUTPUT_GRACE_S)
    except asyncio.CancelledError:
        await finish(sandbox.kill_all(keep=spared))
        raise
    finally:
        await discard(leave)
        for reader in readers:
            await outputs.keep(reader)
    ended: JobStatus = "success" if status.code == 0 else "error"
    return ShellResult(
        status=ended if done else "timeout",
        stdout=texts[0].text(),
        stderr=texts[1].text(),
        exit_code=status.code,
        timed_out=not done,
    )


async def read_on(reader: asyncio.StreamReader, text: CappedText) -> None:
    """Read an output to its end."""
    while data := await reader.read(CHUNK_BYTES):
        text.write(data)
        if text.is_full:  # a flood: let the other tasks of the server run in between
            await asyncio.sleep(0)
