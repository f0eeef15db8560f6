"""A child process that tunes one model: `python -m penstock.tune.child`.

It reads a `TuneJob` as JSON from standard input, and writes an `Outcome` as JSON to standard
output. It has the lowest priority, so that the engines of the server go on as before, and the
parent ends it by killing it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Final

import msgspec

from penstock.base.errors import ServiceError
from penstock.config import limit_blas_threads, limit_malloc_arenas
from penstock.tune.job import run_job
from penstock.tune.outcome import Failure, Outcome, TuneJob

NICENESS: Final = 19


def main() -> None:
    limit_blas_threads()
    limit_malloc_arenas()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles it and kills this process
    os.nice(NICENESS)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TuneJob)
    sys.stdout.buffer.write(msgspec.json.encode(outcome_of(job)))


def outcome_of(job: TuneJob) -> Outcome:
    """Run a job and return its result or its error."""
    try:
        return Outcome(response=run_job(job))
    except ServiceError as error:
        return Outcome(
            failure=Failure(
                error.status,
                error.kind,
                error.code,
                error.message,
                error.field,
                error.retry_after_s,
            )
        )


if __name__ == "__main__":
    main()
