"""Runs the calls of one round: approvals, the tools themselves, and their output files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import orjson

from penstock.agent.output_files import OutputFiles, summaries
from penstock.agent.permissions import CallPermissions
from penstock.agent.protocols import AgentObserver, CallStatus
from penstock.agent.tools.tool import BadArguments, CallContext, Tool, ToolOutcome
from penstock.dialog import (
    ApprovalRequired,
    CustomActivity,
    Event,
    FileProduced,
    GenerateRequest,
    Image,
    ToolActivity,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
)

log = logging.getLogger(__name__)

FAILED: Final = "the tool failed; the server's log says why"


@dataclass(slots=True)
class _Call:
    """A call of the round. `part`: its part index. `arguments`: decoded, None if they are bad.
    `refusal`: the outcome of a call that does not run."""

    part: int
    call: ToolCall
    tool: Tool[Any]
    arguments: Any
    activity: ToolActivity
    refusal: ToolOutcome | None = None


class CallRunner:
    """Runs the calls of one request.

    - `tools`: name -> tool.
    - `session`, `container`: ids of the session and of its container.
    - `max_images`: number of images of a result that the model sees; 0 if it reads no images.
    """

    def __init__(
        self,
        tools: Mapping[str, Tool[Any]],
        permissions: CallPermissions,
        outputs: OutputFiles,
        observer: AgentObserver,
        *,
        session: str,
        container: str,
        max_images: int = 0,
    ) -> None:
        self._max_images = max_images
        self._tools = tools
        self._permissions = permissions
        self._outputs = outputs
        self._observer = observer
        self._session = session
        self._container = container
        self._announced: set[str] = set()

    async def run(
        self, request: GenerateRequest, round: int, calls: Sequence[ToolCall], first_part: int
    ) -> AsyncGenerator[Event, None]:
        """Yield the events of all calls of a round. Calls run in order; neighbours that only read
        run side by side. Closing the generator ends the running calls.

        - `request`: the client's request, with the whole conversation.
        - `first_part`: the part index of the first call.
        """
        prepared = [self._prepare(first_part + i, call) for i, call in enumerate(calls)]
        for group in _groups(prepared):
            for one in group:
                yield ToolCalling(0, one.part, round, one.call, one.tool.info, one.activity)
                if one.refusal is not None:
                    continue
                if self._permissions.of(one.tool.info) == "deny":
                    one.refusal = _denied(one.activity, self._permissions.refusal())
                elif await self._permissions.needs_approval(one.tool.info):
                    approval_id = await self._permissions.request_approval()
                    yield self._approval_required(approval_id, round, one)
                    message = await self._permissions.denial(approval_id)
                    if message is not None:
                        one.refusal = _denied(one.activity, message)
            events = self._run_group(request, round, group)
            try:
                async for event in events:
                    yield event
            finally:
                await events.aclose()

    def _prepare(self, part: int, call: ToolCall) -> _Call:
        tool = self._tools[call.name]
        try:
            arguments = tool.decode(call.arguments)
        except BadArguments as error:
            activity = CustomActivity(arguments=call.arguments)
            refusal = _failed(activity, error.message)
            return _Call(part, call, tool, None, activity, refusal)
        return _Call(part, call, tool, arguments, tool.describe(arguments))

    async def _run_group(
        self, request: GenerateRequest, round: int, group: Sequence[_Call]
    ) -> AsyncGenerator[Event, None]:
        tasks = {asyncio.ensure_future(self._run_call(request, round, one)): one for one in group}
        running = set(tasks)
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in sorted(done, key=lambda task: tasks[task].part):
                    run = task.result()
                    yield ToolCompleted(0, tasks[task].part, run)
                    for file in run.files:
                        if file.id not in self._announced:
                            self._announced.add(file.id)
                            yield FileProduced(0, file)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _run_call(self, request: GenerateRequest, round: int, one: _Call) -> ToolRun:
        started_s = time.monotonic()
        status: CallStatus = "cancelled"
        try:
            outcome = one.refusal or await self._outcome(request, round, one)
            status = _status(outcome)
        finally:
            self._observer.call_ended(one.tool.info, status, time.monotonic() - started_s)
        files = await self._outputs.store(outcome.files, one.call.name, round)
        result = outcome.result
        if not isinstance(result, str):
            if files:
                result = result | {"files": summaries(files)}
            result = orjson.dumps(result).decode()
        return ToolRun(
            round=round,
            call=one.call,
            tool=one.tool.info,
            activity=outcome.activity,
            result=ToolResult(one.call.id, result, one.call.name, outcome.is_error),
            files=files,
            images=tuple(Image(data=data) for data in outcome.images[: self._max_images]),
        )

    async def _outcome(self, request: GenerateRequest, round: int, one: _Call) -> ToolOutcome:
        context = CallContext(self._session, self._container, round, one.call, request)
        try:
            return await one.tool.run(one.arguments, context)
        except Exception:
            log.exception("the tool %s failed", one.tool.info.name)
            return _failed(one.activity, FAILED)

    def _approval_required(self, approval_id: str, round: int, one: _Call) -> ApprovalRequired:
        return ApprovalRequired(
            choice=0,
            part=one.part,
            approval_id=approval_id,
            session=self._session,
            round=round,
            tool=one.tool.info,
            arguments=one.call.arguments,
        )


def _groups(calls: Sequence[_Call]) -> Iterator[list[_Call]]:
    """Yield the calls in order: neighbours that only read as one group, each other call alone."""
    group: list[_Call] = []
    for one in calls:
        if group and not (one.tool.reads_only and group[-1].tool.reads_only):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _denied(activity: ToolActivity, message: str) -> ToolOutcome:
    result = {"status": "denied", "exception": message}
    return ToolOutcome(_ended(activity, "denied", message), result, is_error=True)


def _failed(activity: ToolActivity, message: str) -> ToolOutcome:
    result = {"status": "error", "error": message}
    return ToolOutcome(_ended(activity, "error", message), result, is_error=True)


def _ended(activity: ToolActivity, status: str, message: str) -> ToolActivity:
    """Return the activity of a call that did not run, with the reason."""
    reason: dict[str, Any] = {"status": status}
    if hasattr(activity, "exception"):
        reason["exception"] = message
    elif hasattr(activity, "stderr"):
        reason["stderr"] = message
    elif hasattr(activity, "content"):
        reason["content"] = message
    return msgspec.structs.replace(activity, **reason)


def _status(outcome: ToolOutcome) -> CallStatus:
    match outcome.activity.status:
        case "denied":
            return "denied"
        case "timeout":
            return "timeout"
        case _:
            return "error" if outcome.is_error else "success"
