"""Runs requests. One round now; tools that run on the server will make it several."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from penstock.base.errors import ServiceError
from penstock.dialog import Event, GenerateRequest, RunFailed
from penstock.generation import Generator

log = logging.getLogger(__name__)


class AgentLoop:
    """Answers requests with one model. The only entry that the API and embedded use know."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """The events of one run; exactly one RunEnded or RunFailed, and it is last.

        What a client or an operator caused comes as RunFailed, never as an exception. Closing the
        generator aborts the run.
        """
        async with aclosing(self._generator.run(request)) as events:
            try:
                async for event in events:
                    yield event
            except ServiceError as error:
                yield failure(error)

    async def count(self, request: GenerateRequest) -> int:
        """How many tokens the prompt of a request has. Raises InvalidRequest."""
        return await self._generator.count(request)


def failure(error: ServiceError) -> RunFailed:
    """An error as the event that ends a run."""
    return RunFailed(
        status=error.status,
        kind=error.kind,
        code=error.code,
        message=error.message,
        field=error.field,
        retry_after_s=error.retry_after_s,
    )
