"""Entries of the route table: OpenAI's Responses API."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import (
    BODY_ERRORS,
    ENGINE_ERRORS,
    FILE_ERRORS,
    PAGES,
    STORE_ERRORS,
    Operation,
    Query,
)
from penstock.api.routes.response_conversation import CountInputTokens
from penstock.api.routes.responses import (
    CancelResponse,
    CreateResponse,
    DeleteResponse,
    GetResponse,
    ListInputItems,
)
from penstock.api.schema.responses.request_and_resource import (
    InputTokens,
    ItemList,
    OpenResponsesCreateRequest,
    ResponseDeleted,
    ResponseResource,
)
from penstock.api.schema.responses.stream_events import ResponseStreamEvent

TAG: Final = "Responses"
EVENTS: Final = (("ResponseStreamEvent", ResponseStreamEvent),)
EXAMPLE: Final = {"model": "default", "input": "Name three rivers of Europe."}
REPLAY: Final = (
    Query(
        "stream",
        "Stream the events again. The response must have been created with `background` and"
        " `stream`.",
        {"type": "boolean"},
    ),
    Query(
        "starting_after",
        "With `stream`: the `sequence_number` of the last event that the client has.",
        {"type": "integer", "minimum": 0},
    ),
)

OPERATIONS: Final = (
    Operation(
        "POST /v1/responses",
        CreateResponse,
        id="createResponse",
        tag=TAG,
        summary="Create a response (OpenAI Responses): streamed, stored or in the background",
        request=OpenResponsesCreateRequest,
        example={**EXAMPLE, "max_output_tokens": 64},
        response=ResponseResource,
        events=EVENTS,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, 507),
    ),
    Operation(
        "POST /v1/responses/input_tokens",
        CountInputTokens,
        id="countInputTokens",
        tag=TAG,
        summary="Count the tokens of a prompt",
        request=OpenResponsesCreateRequest,
        example=EXAMPLE,
        response=InputTokens,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS),
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        GetResponse,
        id="getResponse",
        tag=TAG,
        summary="Get a stored response",
        response=ResponseResource,
        events=EVENTS,
        errors=STORE_ERRORS,
        query=REPLAY,
    ),
    Operation(
        "DELETE /v1/responses/{response_id}",
        DeleteResponse,
        id="deleteResponse",
        tag=TAG,
        summary="Delete a stored response",
        response=ResponseDeleted,
        errors=STORE_ERRORS,
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        CancelResponse,
        id="cancelResponse",
        tag=TAG,
        summary="Cancel a background response",
        response=ResponseResource,
        errors=STORE_ERRORS,
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        ListInputItems,
        id="listInputItems",
        tag=TAG,
        summary="List the input items of a response",
        response=ItemList,
        errors=STORE_ERRORS,
        query=PAGES,
    ),
)
