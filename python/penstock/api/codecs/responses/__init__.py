"""The responses interface: `/v1/responses`."""

from penstock.api.codecs.responses.chain import continued
from penstock.api.codecs.responses.decode import (
    ResponsesRequest,
    check_include,
    decode,
    resolved,
)
from penstock.api.codecs.responses.history import input_items
from penstock.api.codecs.responses.ids import RESPONSE_PREFIX, response_of
from penstock.api.codecs.responses.resource import (
    TERMINAL,
    Resource,
    ResponseIdentity,
    settled,
)
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
    "continued",
    "decode",
    "input_items",
    "resolved",
    "response_of",
    "settled",
]
