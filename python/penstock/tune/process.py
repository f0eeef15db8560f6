"""Runs jobs in child processes of a server, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Final

import msgspec

from penstock.base.errors import Overloaded, ServiceError, Unavailable
from penstock.tune.outcome import Failure, Outcome, TuneJob
from penstock.tune.types import TuneModelResponse

MAX_WAITING: Final = 4
"""Jobs that wait for the running one; further ones are refused."""

RETRY_AFTER_S: Final = 30


class Tuner:
    """Runs jobs, each in a child process of the lowest priority. Others wait, because two
    measurements at the same time would slow each other down."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def run(self, job: TuneJob) -> TuneModelResponse:
        """Return the result of a job. If the caller is cancelled, the process is killed. Raises
        ServiceError: those of `run_job`, Overloaded if too many jobs wait, and Unavailable if the
        process was killed."""
        if self._waiting > MAX_WAITING:
            raise Overloaded(
                "other models are being tuned; try again later", retry_after_s=RETRY_AFTER_S
            )
        self._waiting += 1
        try:
            async with self._turn:
                return await _run(job)
        finally:
            self._waiting -= 1


async def _run(job: TuneJob) -> TuneModelResponse:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "penstock.tune.child",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must reach the server only
    )
    try:
        written, _ = await process.communicate(msgspec.json.encode(job))
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        outcome = msgspec.json.decode(written, type=Outcome)
    except msgspec.MsgspecError:
        raise Unavailable(
            "the process that measured the model ended early; the machine may have too little"
            " memory, and the server's log may say more",
            code="tuning_ended",
            retry_after_s=RETRY_AFTER_S,
        ) from None
    if outcome.failure is not None:
        raise _error(outcome.failure)
    assert outcome.response is not None, "an outcome has one of both"
    return outcome.response


def _error(failure: Failure) -> ServiceError:
    error = ServiceError(
        failure.message,
        field=failure.field,
        code=failure.code,
        retry_after_s=failure.retry_after_s,
    )
    error.status, error.kind = failure.status, failure.kind
    return error
