"""Assembles the conversation of a Responses request: instructions, previous messages, new messages.
Also the endpoint of `/v1/responses/input_tokens`, which counts the tokens of the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.codecs.responses import (
    TERMINAL,
    ResponsesRequest,
    continue_conversation,
    decode,
    resolve_item_references,
    response_of,
)
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.responses.response_row import conversation_of
from penstock.api.responses.response_runs import ResponseRuns
from penstock.api.routes.answers import send_value
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, NotFound
from penstock.dialog import Message, Text

if TYPE_CHECKING:
    from penstock.store import StoredResponse

MAX_SHOWN_CHARS: Final = 80


class CountInputTokens:
    """POST: returns the number of prompt tokens of a Responses request. Generates and stores
    nothing."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader = RequestReader(services, decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked, record = await self._reader.read(scope, receive)
        record.streaming = False  # even if the request has `stream`
        runs = self._services.runs
        asked = await with_referenced_items(asked, runs)
        before = previous_messages(await previous_response(asked, runs))
        messages = with_instructions(
            asked, continue_conversation(before, asked.request.messages or ())
        )
        request = msgspec.structs.replace(asked.request, messages=messages)
        counting = self._services.models[record.model].count(request)
        tokens = await cancel_on_disconnect(counting, receive)
        await send_value({"object": "response.input_tokens", "input_tokens": tokens}, send)


async def with_referenced_items(asked: ResponsesRequest, runs: ResponseRuns) -> ResponsesRequest:
    """Return the request with its item references replaced by the stored items. Raises NotFound."""
    if not asked.references:
        return asked
    found: dict[str, Any] = {}
    for id in asked.references:
        if id in found:
            continue
        response = response_of(id)
        stored = await runs.get(response) if response is not None else None
        if stored is not None:
            items = orjson.loads(stored.body)["output"]
            found.update((item["id"], item) for item in items)
        if id not in found:
            raise NotFound(f"Item with id '{shorten_id(id)}' not found", code="item_not_found")
    return resolve_item_references(asked, found)


async def previous_response(asked: ResponsesRequest, runs: ResponseRuns) -> StoredResponse | None:
    """Return the response `previous_response_id`, or None if the request names none. Raises
    NotFound, and InvalidRequest if that response is unfinished."""
    if asked.previous_id is None:
        return None
    stored = await runs.get(asked.previous_id)
    if stored is None:
        raise_response_not_found(asked.previous_id, "previous_response_id")
    if stored.status not in TERMINAL:
        raise InvalidRequest(
            f"`previous_response_id` names a response that is {stored.status}; wait until it ends",
            field="previous_response_id",
        )
    return stored


def previous_messages(previous: StoredResponse | None) -> tuple[Message, ...]:
    """Return the messages of the conversation up to and including the previous response."""
    return () if previous is None else conversation_of(previous)


def with_instructions(asked: ResponsesRequest, turn: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages for the model: the request's instructions, if any, followed by `turn`."""
    if asked.instructions is None:
        return turn
    return (Message("system", (Text(asked.instructions),)), *turn)


def raise_response_not_found(id: str, field: str | None = None) -> NoReturn:
    """Raise NotFound for the response `id`, which the request names in `field`."""
    raise NotFound(
        f"Response with ID '{shorten_id(id)}' not found", field=field, code="response_not_found"
    )


def shorten_id(id: str) -> str:
    """Return an id for an error message, truncated if it is long."""
    return id if len(id) <= MAX_SHOWN_CHARS else id[:MAX_SHOWN_CHARS] + "..."
