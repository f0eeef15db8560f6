"""OpenAI's Responses dialect: `/v1/responses`."""

from penstock.api.codecs.responses.conversation import continue_conversation
from penstock.api.codecs.responses.decode import (
    ResponsesRequest,
    check_include,
    decode,
    resolve_item_references,
)
from penstock.api.codecs.responses.item_ids import RESPONSE_PREFIX, container_of, response_of
from penstock.api.codecs.responses.resource import (
    TERMINAL,
    Resource,
    ResponseIdentity,
    with_final_status,
)
from penstock.api.codecs.responses.stored_input_items import input_items
from penstock.api.codecs.responses.stream import ResponseStream, closing_frame

__all__ = [
    "RESPONSE_PREFIX",
    "TERMINAL",
    "Resource",
    "ResponseIdentity",
    "ResponseStream",
    "ResponsesRequest",
    "check_include",
    "closing_frame",
    "container_of",
    "continue_conversation",
    "decode",
    "input_items",
    "resolve_item_references",
    "response_of",
    "with_final_status",
]
