"""Entries of the route table: Anthropic's Messages API."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.messages import MessagesDialect
from penstock.api.route_table.operation import (
    BODY_ERRORS,
    ENGINE_ERRORS,
    FILE_ERRORS,
    SESSION_ERRORS,
    Operation,
)
from penstock.api.routes.count_tokens import CountTokens
from penstock.api.routes.generate import GenerateEndpoint
from penstock.api.schema.agent import FileObject
from penstock.api.schema.messages.answers import (
    CountTokensResponse,
    MessageResponse,
    MessagesError,
    MessageStreamEvent,
)
from penstock.api.schema.messages.request import MessagesRequest

TAG: Final = "Messages"
EXAMPLE: Final = {
    "model": "default",
    "messages": [{"role": "user", "content": "Name three rivers of Europe."}],
}

OPERATIONS: Final = (
    Operation(
        "POST /v1/messages",
        lambda services: GenerateEndpoint(services, MessagesDialect()),
        id="createMessage",
        tag=TAG,
        summary="Create a message (Anthropic Messages)",
        request=MessagesRequest,
        example={**EXAMPLE, "max_tokens": 64},
        response=MessageResponse,
        events=(("MessageStreamEvent", MessageStreamEvent), ("FileObject", FileObject)),
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS, *SESSION_ERRORS),
        error=MessagesError,
    ),
    Operation(
        "POST /v1/messages/count_tokens",
        lambda services: CountTokens(services, MessagesDialect()),
        id="countTokens",
        tag=TAG,
        summary="Count the tokens of a prompt",
        request=MessagesRequest,
        example=EXAMPLE,
        response=CountTokensResponse,
        errors=(*BODY_ERRORS, *ENGINE_ERRORS, *FILE_ERRORS),
        error=MessagesError,
    ),
)
