"""Runs requests with a generator and handles their files, sessions and server tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Collection
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from penstock.agent.calls import CallRunner
from penstock.agent.output_files import OutputFiles
from penstock.agent.permissions import CallPermissions, check_can_ask
from penstock.agent.rounds import MAX_ROUNDS, ToolRounds
from penstock.agent.sessions import Answer, SessionStore, run_in_session
from penstock.agent.tool_provider import ToolProvider
from penstock.agent.workspace import container_id
from penstock.base.errors import ServiceError
from penstock.base.ids import new_id
from penstock.dialog import Event, GenerateRequest, RunFailed
from penstock.models.loader.sampling_defaults import SamplingDefaults
from penstock.models.media.prepared import MediaKind

MAX_RESULT_IMAGES: Final = 4
"""Images of the result of one server tool call that the model sees."""


class FileAttachments(Protocol):
    """The methods of `attachments.Attachments`, which replaces file parts by media and texts.
    Embedded use has no attachments and does not import that module."""

    def attach(
        self, request: GenerateRequest, kinds: Collection[MediaKind]
    ) -> Awaitable[GenerateRequest]: ...

    def preview(
        self, request: GenerateRequest, kinds: Collection[MediaKind]
    ) -> Awaitable[GenerateRequest]: ...


class TextGenerator(Protocol):
    """The methods of `Generator` that the agent loop uses. A transcriber has them too."""

    @property
    def sampling_defaults(self) -> SamplingDefaults | None: ...

    @property
    def media_kinds(self) -> tuple[MediaKind, ...]: ...

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...

    async def count(self, request: GenerateRequest) -> int: ...

    def close(self) -> None: ...


class AgentLoop:
    """Answers requests with one generator.

    - `attachments`: stores the files of requests, None to refuse requests with files.
    - `sessions`: the stored sessions, None to ignore session ids.
    - `tools`: chooses the server tools of requests, None to run none.
    """

    def __init__(
        self,
        generator: TextGenerator,
        attachments: FileAttachments | None = None,
        *,
        sessions: SessionStore | None = None,
        tools: ToolProvider | None = None,
    ) -> None:
        self._generator = generator
        self._attachments = attachments
        self._sessions = sessions
        self._tools = tools

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
        generator aborts the run and ends its tools. A request without server tools, files and
        session goes directly to the model's generator.
        """
        if self._tools is not None and self._tools.applies(request):
            return self._run_with_tools(request, self._tools)
        in_session = request.session is not None and self._sessions is not None
        if in_session or self._needs_attaching(request):
            return self._run(request)
        return self._generator.run(request)

    async def attach(self, request: GenerateRequest) -> GenerateRequest:
        """Store the files of a request and return the request with media and texts in place of the
        files, and with the content of media given by URL.

        `run` also does this; the method is for callers that store the conversation. Raises
        ServiceError.
        """
        if self._attachments is None or not (request.has_files or request.has_media_urls):
            return request
        return await self._attachments.attach(request, self._generator.media_kinds)

    async def count(self, request: GenerateRequest) -> int:
        """Return the number of tokens in the prompt of a request, without storing its files. Raises
        ServiceError."""
        if self._attachments is not None and self._needs_attaching(request):
            request = await self._attachments.preview(request, self._generator.media_kinds)
        if self._tools is not None and self._tools.applies(request):
            self._tools.check(request)
            toolbox, _ = await self._tools.toolbox(request, "", "")
            request = toolbox.first_round(request)
        return await self._generator.count(request)

    async def _run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        try:
            request = await self.attach(request)
            async with aclosing(self._in_session(request, self._generator.run)) as events:
                async for event in events:
                    yield event
        except ServiceError as error:
            yield RunFailed.of(error)

    async def _run_with_tools(
        self, request: GenerateRequest, tools: ToolProvider
    ) -> AsyncGenerator[Event, None]:
        # Without an id, no later request can use the container.
        nameless = request.session is None and request.container is None
        discarded = nameless and self._sessions is None
        # A request with a container belongs to a stored conversation without a session.
        shown_session = None
        if request.container is None and self._sessions is not None:
            shown_session = request.session or new_id("sess_")
        session = shown_session or request.session or request.container or new_id("sess_")
        container = request.container or container_id(session)
        try:
            request = msgspec.structs.replace(request, session=shown_session, container=container)
            tools.check(request)
            request = await self.attach(request)
            rounds = await self._rounds(request, tools, session, container, shown_session)
            async with aclosing(self._in_session(request, rounds.run)) as events:
                async for event in events:
                    yield event
        except ServiceError as error:
            yield RunFailed.of(error)
        finally:
            if discarded and tools.sources.containers is not None:
                await tools.sources.containers.close_container(container)

    async def _rounds(
        self,
        request: GenerateRequest,
        tools: ToolProvider,
        session: str,
        container: str,
        shown_session: str | None,
    ) -> ToolRounds:
        """Return the runner of a request's rounds. Raises ServiceError."""
        sources = tools.sources
        settings = sources.settings
        toolbox, workspace = await tools.toolbox(request, session, container)
        if toolbox.tools:
            check_can_ask(settings.agent_permission, request)
        turn = sum(message.role == "user" for message in request.messages or ()) - 1
        outputs = OutputFiles(
            sources.files, session, container, max(turn, 0), request.files, workspace.note_present
        )
        permissions = CallPermissions(
            settings.agent_permission, request, sources.approvals, session, sources.observer
        )
        calls = CallRunner(
            toolbox.tools,
            permissions,
            outputs,
            sources.observer,
            session=session,
            container=container,
            max_images=MAX_RESULT_IMAGES if "image" in self._generator.media_kinds else 0,
        )
        limits = (request.limits.max_rounds, settings.max_tool_rounds, MAX_ROUNDS)
        return ToolRounds(
            self._generator.run,
            toolbox,
            calls,
            outputs,
            sources.observer,
            max_rounds=next(limit for limit in limits if limit is not None),
            session=shown_session,
        )

    def _needs_attaching(self, request: GenerateRequest) -> bool:
        return self._attachments is not None and request.has_files

    def _in_session(self, request: GenerateRequest, answer: Answer) -> AsyncGenerator[Event, None]:
        """Return the events of the answer to a request, within its session if it has one."""
        if request.session is None or self._sessions is None:
            return answer(request)
        return run_in_session(request, self._sessions, answer)
