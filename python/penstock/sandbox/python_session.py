"""The persistent Python interpreter of a container, seen from the server."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

from penstock.sandbox.captured_output import CappedText, MarkedOutput
from penstock.sandbox.environment import python_environment
from penstock.sandbox.launcher import Sandbox, SandboxDied
from penstock.sandbox.process import ExitStatus, SandboxProcess
from penstock.sandbox.python_facts import PythonFacts
from penstock.sandbox.python_protocol import (
    BOOTSTRAP,
    NONCE_BYTES,
    BadReply,
    Reply,
    encode_job,
    encode_setup,
    read_reply,
)
from penstock.sandbox.shell import kill
from penstock.sandbox.types import JobStatus, PythonJob, PythonResult
from penstock.sandbox.waiting import complete, discard, finish

MAX_OUTPUT_CHARS = 256 * 1024
INTERRUPT_GRACE_S = 3.0
CANCEL_GRACE_S = 0.5
OUTPUT_GRACE_S = 1.0  # for output that the interpreter wrote before its reply
EXIT_GRACE_S = 1.0  # for the exit status after the end of the channel
LAST_REPLY_S = 0.5  # for a reply that was sent before the process ended
REPORTED_STDERR_LINES = 32
UNSTOPPABLE = "The code ran for more than {:g} s and could not be interrupted."
LOST = "All variables are lost. The next call starts a new interpreter."
GONE = (asyncio.IncompleteReadError, ConnectionError)


class PythonSession:
    """One interpreter process. Once it has `ended`, only `close` may be called."""

    def __init__(self, process: SandboxProcess) -> None:
        assert process.channel is not None
        self._process = process
        self._replies, self._requests = process.channel
        self._stdout = MarkedOutput(process.stdout, MAX_OUTPUT_CHARS)
        self._stderr = MarkedOutput(process.stderr, MAX_OUTPUT_CHARS)
        self._exit = asyncio.ensure_future(process.wait())
        self.ended = False

    @classmethod
    async def start(cls, sandbox: Sandbox, facts: PythonFacts) -> PythonSession:
        """Start an interpreter in the sandbox."""
        argv = [facts.executable, "-u", "-X", "utf8", "-c", BOOTSTRAP]
        environment = python_environment(sandbox, facts)
        work = sandbox.spawn(argv, environment, channel=True)
        session = cls(await complete(work, kill))
        session._requests.write(encode_setup(facts.code))
        return session

    async def run(self, job: PythonJob) -> PythonResult:
        """Run a job and return its result without files.

        At the time-out the code is interrupted. If it does not end within 3 seconds, the
        interpreter and all its child processes are killed. If the caller is cancelled, the same
        happens within half a second, before the cancellation goes on. Raises SandboxDied.
        """
        nonce, marker = os.urandom(NONCE_BYTES), os.urandom(NONCE_BYTES)
        self._stdout.expect(marker)
        self._stderr.expect(marker)
        answer = asyncio.ensure_future(self._exchange(nonce, marker, job.code))
        try:
            interrupted = not await self._ends_within(answer, job.timeout_s)
            if interrupted:
                await self._process.signal(signal.SIGINT)
                await self._ends_within(answer, INTERRUPT_GRACE_S)
            return await self._result(answer, job.timeout_s, interrupted)
        except asyncio.CancelledError:
            await finish(self._give_up(answer))
            raise
        finally:
            answer.cancel()
            await asyncio.wait({answer})

    async def close(self) -> None:
        """Kill the interpreter and release its descriptors."""
        self.ended = True
        with suppress(SandboxDied):
            await self._process.signal(signal.SIGKILL)
        await self._stdout.close()
        await self._stderr.close()
        await discard(self._exit)
        self._process.close()

    async def _exchange(self, nonce: bytes, marker: bytes, code: str) -> Reply:
        if self._requests.is_closing():  # uvloop's write() would raise a RuntimeError
            raise ConnectionResetError
        self._requests.write(encode_job(nonce, marker, code))
        await self._requests.drain()
        return await read_reply(self._replies, nonce)

    async def _ends_within(self, answer: asyncio.Future[Reply], timeout_s: float) -> bool:
        """Return whether the job or the process has ended after at most `timeout_s`."""
        waited: set[asyncio.Future[Any]] = {answer, self._exit}
        done, _ = await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)

    async def _result(
        self, answer: asyncio.Future[Reply], timeout_s: float, interrupted: bool
    ) -> PythonResult:
        """Return the result of a job: of its reply, or of an interpreter that gave none."""
        reply, stopped = Reply(), ""
        if not answer.done() and not self._exit.done():
            stopped = UNSTOPPABLE.format(timeout_s)
        else:
            try:
                reply = await asyncio.wait_for(answer, LAST_REPLY_S)
            except BadReply as error:
                stopped = str(error)
            except (*GONE, asyncio.TimeoutError):
                stopped = await self._death()
        if stopped:
            await self._kill()
        stdout = await self._stdout.take(OUTPUT_GRACE_S)
        stderr = await self._stderr.take(OUTPUT_GRACE_S)
        status: JobStatus = "success" if reply.succeeded else "error"
        return PythonResult(
            status="timeout" if interrupted else status,
            stdout=stdout.text(),
            stderr=stderr.text(),
            exception=f"{stopped}{last_lines(stderr)}\n{LOST}" if stopped else reply.exception,
            result=reply.result,
            result_type=reply.result_type,
            images=tuple(reply.images),
            video_frames=tuple(reply.video_frames),
            interrupted=interrupted and not stopped,
            killed=interrupted and bool(stopped),
            state_lost=bool(stopped),
        )

    async def _death(self) -> str:
        """Return how the interpreter ended."""
        done, _ = await asyncio.wait({self._exit}, timeout=EXIT_GRACE_S)
        if not done:
            return "The code closed the connection between the Python interpreter and the server."
        return f"The Python interpreter ended unexpectedly ({cause_of(self._exit.result())})."

    async def _give_up(self, answer: asyncio.Future[Reply]) -> None:
        """Interrupt the job of a cancelled caller; end the interpreter if that has no effect."""
        if not answer.done() and not self._exit.done():
            await self._process.signal(signal.SIGINT)
            await self._ends_within(answer, CANCEL_GRACE_S)
        if answer.done() and answer.exception() is None:
            await self._stdout.take(OUTPUT_GRACE_S)
            await self._stderr.take(OUTPUT_GRACE_S)
        else:
            await self._kill()

    async def _kill(self) -> None:
        """Kill the interpreter and all processes that it started."""
        self.ended = True
        await self._process.signal(signal.SIGKILL)
        await asyncio.wait({self._exit})


def cause_of(status: ExitStatus) -> str:
    """Return the exit status in words."""
    if status.signal is None:
        return f"exit code {status.code}"
    if status.signal == signal.SIGKILL:
        return "SIGKILL, perhaps because of the memory limit"
    return signal.Signals(status.signal).name


def last_lines(stderr: CappedText) -> str:
    """Return the end of an interpreter's stderr as a part of a message."""
    lines = stderr.last_lines(REPORTED_STDERR_LINES)
    return "\n".join(["\nThe last lines of stderr:", *lines]) if lines else ""
