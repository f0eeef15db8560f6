"""Runs requests. One round now; tools that run on the server will make it several."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Protocol

from penstock.agent.sessions import SessionStore, run_in_session
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.dialog import (
    EmbeddingRequest,
    Embeddings,
    Event,
    File,
    GenerateRequest,
    Outlet,
    Ranking,
    RerankRequest,
    RunFailed,
)
from penstock.engine.types import NO_EMBEDDINGS, NO_RANKING
from penstock.generation import Generator
from penstock.models.loader.sampling_defaults import SamplingDefaults

log = logging.getLogger(__name__)


class FileAttachments(Protocol):
    """What makes texts of file parts: `attachments.Attachments`. Embedded use has none, and does
    not load what that needs."""

    def attach(self, request: GenerateRequest) -> Awaitable[GenerateRequest]: ...

    def preview(self, request: GenerateRequest) -> Awaitable[GenerateRequest]: ...


class AgentLoop:
    """Answers requests with one model. The only entry that the API and embedded use know.

    `attachments` None: a request with files is refused. `sessions` None: a request's session is of
    no account.
    """

    def __init__(
        self,
        generator: Generator,
        attachments: FileAttachments | None = None,
        *,
        sessions: SessionStore | None = None,
    ) -> None:
        self._generator = generator
        self._attachments = attachments
        self._sessions = sessions

    @property
    def sampling_defaults(self) -> SamplingDefaults | None:
        """The sampling of requests that ask for none; None where its origin is not known."""
        return self._generator.sampling_defaults

    def close(self) -> None:
        """End what was started beside the engine. May be called again."""
        self._generator.close()

    async def run(
        self, request: GenerateRequest, outlet: Outlet | None = None
    ) -> AsyncGenerator[Event, None]:
        """The events of one run; exactly one RunEnded or RunFailed, and it is last.

        What a client or an operator caused comes as RunFailed, never as an exception. Closing the
        generator aborts the run. `outlet` may get deltas instead.
        """
        try:
            request = await self.attach(request)
            async with aclosing(self._answer(request, outlet)) as events:
                async for event in events:
                    yield event
        except ServiceError as error:
            yield failure(error)

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """The request with its files stored, and shown as texts. `run` does it too; this is for
        whoever keeps the conversation. Raises what a client or an operator caused."""
        if self._attachments is None or not has_files(request):
            return request
        return await self._attachments.attach(request)

    async def count(self, request: GenerateRequest) -> int:
        """How many tokens the prompt of a request has; its files are not stored. Raises what a
        client or an operator caused."""
        if self._attachments is not None and has_files(request):
            request = await self._attachments.preview(request)
        return await self._generator.count(request)

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Raises InvalidRequest: the model writes text."""
        raise InvalidRequest(NO_EMBEDDINGS, field="model", code="unsupported_model")

    async def rerank(self, request: RerankRequest) -> Ranking:
        """Raises InvalidRequest: the model writes text."""
        raise InvalidRequest(NO_RANKING, field="model", code="unsupported_model")

    def _answer(
        self, request: GenerateRequest, outlet: Outlet | None
    ) -> AsyncGenerator[Event, None]:
        if request.session is None or self._sessions is None:
            return self._generator.run(request, outlet)
        return run_in_session(request, self._sessions, lambda r: self._generator.run(r, outlet))


def has_files(request: GenerateRequest) -> bool:
    """Whether there is anything to attach."""
    return any(isinstance(part, File) for m in request.messages or () for part in m.parts)


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
