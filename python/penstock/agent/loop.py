"""Runs requests with a generator and handles their files and sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Protocol

from penstock.agent.sessions import SessionStore, run_in_session
from penstock.base.errors import ServiceError
from penstock.dialog import Event, File, GenerateRequest, RunFailed
from penstock.generation import Generator
from penstock.models.loader.sampling_defaults import SamplingDefaults


class FileAttachments(Protocol):
    """The methods of `attachments.Attachments`, which replaces file parts by texts. Embedded use
    has no attachments and does not import that module."""

    def attach(self, request: GenerateRequest) -> Awaitable[GenerateRequest]: ...

    def preview(self, request: GenerateRequest) -> Awaitable[GenerateRequest]: ...


class AgentLoop:
    """Answers requests with one generator.

    - `attachments`: stores the files of requests, None to refuse requests with files.
    - `sessions`: the stored sessions, None to ignore session ids.
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
        """The default sampling parameters with their origin, None if the origin is not known."""
        return self._generator.sampling_defaults

    def close(self) -> None:
        """Stop the generator's child processes. May be called again."""
        self._generator.close()

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Return the events of one run. The last event, and no other, is RunEnded or RunFailed.

        An error that a client or an operator caused is a RunFailed, never an exception. Closing the
        generator aborts the run. A request without files and session goes directly to the model's
        generator.
        """
        in_session = request.session is not None and self._sessions is not None
        if in_session or self._needs_attaching(request):
            return self._run(request)
        return self._generator.run(request)

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """Store the files of a request and return the request with texts in place of the files.

        `run` also does this; the method is for callers that store the conversation. Raises
        ServiceError.
        """
        if self._attachments is None or not self._needs_attaching(request):
            return request
        return await self._attachments.attach(request)

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of tokens in the prompt of a request, without storing its files. Raises
        ServiceError."""
        if self._attachments is not None and self._needs_attaching(request):
            request = await self._attachments.preview(request)
        return await self._generator.count(request)

    async def _run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        try:
            request = await self.attach(request)
            if request.session is None or self._sessions is None:
                events = self._generator.run(request)
            else:
                events = run_in_session(request, self._sessions, self._generator.run)
            async with aclosing(events):
                async for event in events:
                    yield event
        except ServiceError as error:
            yield RunFailed.of(error)

    def _needs_attaching(self, request: GenerateRequest) -> bool:
        return self._attachments is not None and any(
            isinstance(part, File) for m in request.messages or () for part in m.parts
        )
