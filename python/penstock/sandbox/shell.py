"""Runs commands in a new shell inside a container."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress

from penstock.sandbox.captured_output import CHUNK_BYTES, CappedText
from penstock.sandbox.launcher import Sandbox, SandboxDied
from penstock.sandbox.process import SandboxProcess
from penstock.sandbox.types import JobStatus, ShellJob, ShellResult
from penstock.sandbox.waiting import complete, discard, finish

OUTPUT_GRACE_S = 0.2  # for output after the end of the shell: a background process may hold it
MAX_LEFT_OPEN = 16


class OpenOutput:
    """The outputs of one shell, which background processes may hold after its end."""

    def __init__(self, process: SandboxProcess, max_chars: int) -> None:
        self._process = process
        self.stdout, self.stderr = CappedText(max_chars), CappedText(max_chars)
        self._tasks = {
            asyncio.create_task(read_on(process.stdout, self.stdout)),
            asyncio.create_task(read_on(process.stderr, self.stderr)),
        }

    async def wait(self) -> None:
        """Return at the end of both outputs, at the latest after OUTPUT_GRACE_S."""
        await asyncio.wait(self._tasks, timeout=OUTPUT_GRACE_S)

    @property
    def ended(self) -> bool:
        return all(task.done() for task in self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            await discard(task)
        self._process.close()


class OpenOutputs:
    """The outputs that background processes of ended shells still hold.

    They are read on, so that these processes neither block nor receive SIGPIPE; the oldest are
    closed if there are too many.
    """

    def __init__(self) -> None:
        self._outputs: list[OpenOutput] = []

    async def add(self, output: OpenOutput) -> None:
        self._outputs.append(output)
        for done in [other for other in self._outputs if other.ended]:
            self._outputs.remove(done)
            await done.close()
        if len(self._outputs) > MAX_LEFT_OPEN:
            await self._outputs.pop(0).close()

    async def close(self) -> None:
        while self._outputs:
            await self._outputs.pop().close()


async def run_shell(
    sandbox: Sandbox,
    job: ShellJob,
    argv: list[str],
    environment: dict[str, str],
    open_outputs: OpenOutputs,
) -> ShellResult:
    """Run the shell `argv` and return its result without files.

    At the time-out, and if the caller is cancelled, all processes that the shell started are
    killed. Raises SandboxDied.
    """
    process = await complete(sandbox.spawn(argv, environment), kill)
    output = OpenOutput(process, job.max_output_chars)
    leave = asyncio.ensure_future(process.wait())
    try:
        ended, _ = await asyncio.wait({leave}, timeout=job.timeout_s)
        if not ended:
            await process.signal(signal.SIGKILL)
        status = await leave
        await output.wait()
    except asyncio.CancelledError:
        await finish(kill(process))
        raise
    finally:
        await discard(leave)
        await finish(open_outputs.add(output))
    succeeded: JobStatus = "success" if status.code == 0 else "error"
    return ShellResult(
        status=succeeded if ended else "timeout",
        stdout=output.stdout.text(),
        stderr=output.stderr.text(),
        exit_code=status.code,
        timed_out=not ended,
    )


async def kill(process: SandboxProcess) -> None:
    """Kill a program that no call waits for, and all its descendants."""
    with suppress(SandboxDied):
        await process.signal(signal.SIGKILL)
    process.close()


async def read_on(reader: asyncio.StreamReader, text: CappedText) -> None:
    """Read an output to its end."""
    while data := await reader.read(CHUNK_BYTES):
        text.write(data)
        if text.is_full:  # a flood: let the other tasks of the server run in between
            await asyncio.sleep(0)
