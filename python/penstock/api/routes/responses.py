"""Endpoints of `/v1/responses`: create a response; get, delete and cancel stored responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import msgspec
import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.responses import (
    RESPONSE_PREFIX,
    TERMINAL,
    Resource,
    ResponseIdentity,
    ResponseStream,
    check_include,
    container_of,
    continue_conversation,
    decode,
    input_items,
)
from penstock.api.http.event_stream import EventStream, cancel_on_disconnect
from penstock.api.http.frames import send_frames
from penstock.api.observability.request_record import RequestRecord, current_record
from penstock.api.responses.response_row import input_of
from penstock.api.routes.answers import (
    flag_of,
    query_of,
    send_json,
    send_value,
    values_of,
)
from penstock.api.routes.paging import envelope, in_order, page_of
from penstock.api.routes.request_reader import RequestReader
from penstock.api.routes.response_conversation import (
    previous_messages,
    previous_response,
    raise_response_not_found,
    with_instructions,
    with_referenced_items,
)
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import Event, GenerateRequest, Message, RunFailed
from penstock.dialog.fold import FailedRun

if TYPE_CHECKING:
    from penstock.store import StoredResponse

MAX_DIGITS: Final = 18
DEFAULT_ITEMS: Final = 20
MAX_ITEMS: Final = 100


class CreateResponse:
    """POST /v1/responses: generates a response and returns it as JSON or as a stream, or starts it
    in the background and returns at once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs = services.runs
        self._reader = RequestReader(services, partial(decode, compat=services.compat))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, record = await self._reader.read(scope, receive)
        asked = await with_referenced_items(asked, self._runs)
        previous = await previous_response(asked, self._runs)
        attached = await self._attached(asked.request, record.model)
        turn = continue_conversation(previous_messages(previous), attached)
        id = new_id(RESPONSE_PREFIX)
        container = (previous.container if previous is not None else "") or container_of(id)
        request = msgspec.structs.replace(
            asked.request,
            messages=with_instructions(asked, turn),
            container=container,
            # A background response reports its status while it runs.
            streamed=asked.stream or asked.background,
        )
        identity = ResponseIdentity(
            id=id,
            model=asked.request.model or record.model,
            echoed=asked.echoed,
            background=asked.background,
            field_paths=asked.field_paths,
            namespaces=asked.namespaces,
            container=container,
        )
        record.field_paths = FieldPaths()  # ResponseRuns rewrites the fields of errors
        resource = Resource(identity)
        row = self._runs.row(resource, turn, asked.previous_id) if asked.store else None
        stream = self._stream(record, resource, scope, send)
        events = self._services.models[record.model].run(request)
        if not asked.stream and not asked.background:
            whole = self._runs.follow_whole(events, resource, row)
            await cancel_on_disconnect(_finish(whole), receive)
            await send_json(resource.body(), send)
            return
        events = self._runs.follow(events, resource, row)
        if asked.background:
            events = await self._detach(events, resource, record, logged=asked.stream)
        if not asked.stream:
            await events.aclose()
            await send_value(resource.shown_at_start("queued"), send)
            return
        await stream.run(events, receive)

    def _stream(
        self, record: RequestRecord, resource: Resource, scope: Scope, send: Send
    ) -> EventStream:
        settings = self._services.settings
        return EventStream(
            record,
            ResponseStream(resource),
            send,
            keep_alive_s=settings.keep_alive_interval_ms / 1000,
            stall_timeout_s=settings.stall_timeout_s,
            abort=scope.get("state", {}).get("abort"),
        )

    async def _attached(self, request: GenerateRequest, model: str) -> tuple[Message, ...]:
        """Return the request's messages with media and texts in place of attached files, since
        the stored conversation outlives the files."""
        attached = await self._services.models[model].attach(request)
        assert attached.messages is not None
        return attached.messages

    async def _detach(
        self,
        events: AsyncGenerator[Event, None],
        resource: Resource,
        record: RequestRecord,
        *,
        logged: bool,
    ) -> AsyncGenerator[Event, None]:
        """Run a response in the background and return its events. If the first event is a failure,
        raise FailedRun, so that this HTTP request is answered with the error."""
        if not record.streaming:
            current_record.set(None)  # do not count the response's tokens for this HTTP request
        detached = self._runs.detach(events, resource, logged=logged)
        current_record.set(record)
        first = await anext(detached)
        if isinstance(first, RunFailed):
            raise FailedRun(first)
        return _after(first, detached)


class DeleteResponse:
    """DELETE /v1/responses/{response_id}: deletes a response and stops its run. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._runs = services.runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["response_id"]
        if not await self._runs.delete(id):
            raise_response_not_found(id)
        await send_value({"id": id, "object": "response.deleted", "deleted": True}, send)


class GetResponse:
    """GET /v1/responses/{response_id}: returns a stored response. Raises NotFound and
    InvalidRequest.

    With `stream` in the query, the events of a response that was created with `background` and
    `stream` are streamed, even while the response is running. `starting_after` is the number of the
    last event that the client already has.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._runs = services.runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["response_id"]
        stored = await self._runs.get(id)
        if stored is None:
            raise_response_not_found(id)
        query = query_of(scope)
        check_include(values_of(scope, "include"))
        flag_of(query, "include_obfuscation")  # validated, then ignored: events are not padded
        start = _starting_after(query.get("starting_after")) + 1
        if not flag_of(query, "stream"):
            await send_json(stored.body, send)
            return
        if not await self._services.store.response_events.read(id, 0):
            raise InvalidRequest(
                "`stream` requires a response that was created with `background` and `stream`",
                field="stream",
                code="unsupported_value",
            )
        frames = self._runs.replay(id, start)
        await cancel_on_disconnect(
            send_frames(frames, self._services.settings, scope, send), receive
        )


class ListInputItems:
    """GET /v1/responses/{response_id}/input_items: returns a page of the response's input items."""

    def __init__(self, services: Services) -> None:
        self._runs = services.runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["response_id"]
        stored = await self._runs.get(id)
        if stored is None:
            raise_response_not_found(id)
        include = values_of(scope, "include")
        check_include(include)
        # In a thread, because a conversation may have very many items.
        page = await asyncio.to_thread(_items_page, stored, query_of(scope), include)
        await send_json(page, send)


def _items_page(stored: StoredResponse, query: Mapping[str, str], include: Sequence[str]) -> bytes:
    items = in_order(input_items(input_of(stored), stored.id, include)[::-1], query)
    page, more = page_of(
        items, query, itemgetter("id"), default_limit=DEFAULT_ITEMS, max_limit=MAX_ITEMS
    )
    return orjson.dumps(envelope(page, more))


class CancelResponse:
    """POST /v1/responses/{response_id}/cancel: stops a background response and returns it. A
    response that has ended is returned unchanged."""

    def __init__(self, services: Services) -> None:
        self._runs = services.runs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        id: str = scope["path_params"]["response_id"]
        stored = _check_background(id, await self._runs.get(id))
        if stored.status not in TERMINAL:
            stored = _check_background(id, await self._runs.cancel(id))
        await send_json(stored.body, send)


def _starting_after(value: str | None) -> int:
    """Return the event number in the query parameter `starting_after`, or -1 if it is absent.
    Raises InvalidRequest."""
    if value is None:
        return -1
    if not (value.isascii() and value.isdigit() and len(value) < MAX_DIGITS):
        raise InvalidRequest(
            "`starting_after` must be the `sequence_number` of an event", field="starting_after"
        )
    return int(value)


async def _finish(events: AsyncGenerator[Event, None]) -> None:
    """Consume all events of a run. Raises FailedRun if the run fails."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, RunFailed):
                raise FailedRun(event)


async def _after(first: Event, rest: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event


def _check_background(id: str, stored: StoredResponse | None) -> StoredResponse:
    """Return `stored`. Raises NotFound if it is None, and InvalidRequest if it is not a background
    response."""
    if stored is None:
        raise_response_not_found(id)
    if not stored.background:
        raise InvalidRequest(
            "only background responses can be cancelled; to stop any other, disconnect"
        )
    return stored
