"""The record of one HTTP request while the request is served. The metrics and the access log read
it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, Protocol

from starlette.types import Scope

from penstock.api.codecs.dialect import StreamEncoder
from penstock.api.codecs.request_fields.field_paths import FieldPaths

Outcome = Literal["completed", "error", "client_disconnected", "server_stopped"]

MESSAGES = "/v1/messages"
UNMATCHED = "<unmatched>"
NO_MODEL = "none"
UNKNOWN_MODEL = "unknown"
# A status for metrics and logs only, never sent: the client disconnected before the response.
CLIENT_CLOSED_STATUS = 499


class Connection(Protocol):
    """Direct access to a request's connection, without ASGI and the middlewares. Implemented by
    `uvicorn_protocol.DirectConnection`."""

    @property
    def received(self) -> bool:
        """True once the whole request has arrived."""
        ...

    @property
    def ready(self) -> bool:
        """True if a response stream is open and `write` would send data without waiting."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece of a response stream. Call only while `ready` is True."""
        ...

    @property
    def stopped(self) -> bool:
        """True if the server closed the connection, False if the client did."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call `call` once when the client disconnects, or soon if the client has already
        disconnected. None cancels an earlier callback."""
        ...


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request: its target, outcome and measurements.

    `path`: the path as the client sent it, percent-encoded.
    `route`: the pattern of the route that `path` matched.
    `content_length`: the value of Content-Length, in bytes; None without that header.
    `connection`: None: all data goes through ASGI and the middlewares.
    `started`: True once the request was reported as in flight; its model is then known.
    `housekeeping`: True for health checks and similar requests, which the metrics omit.
    `encoder`: encodes errors as events; set once the headers of an event stream were sent.
    `field_paths`: maps field names in errors to the fields of the client's own JSON.
    """

    id: str
    method: str
    path: str
    content_length: int | None
    connection: Connection | None = None
    started_s: float = field(default_factory=time.monotonic)
    route: str = UNMATCHED
    model: str = NO_MODEL
    status: int = 0
    outcome: Outcome = "completed"
    started: bool = False
    housekeeping: bool = False
    encoder: StreamEncoder | None = None
    field_paths: FieldPaths = field(default_factory=FieldPaths)
    streaming: bool = False
    body_bytes: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def speaks_messages(self) -> bool:
        """True if the path belongs to Anthropic's Messages API, even with a doubled /v1 from the
        base URL. Errors then use Anthropic's JSON, and responses have its id header."""
        path = self.path.removeprefix("/v1") if self.path.startswith("/v1/v1/") else self.path
        return path == MESSAGES or path.startswith(MESSAGES + "/")

    @property
    def first_token_ms(self) -> float | None:
        """Milliseconds from the arrival of the request to its first generated token."""
        if self.first_token_s is None:
            return None
        return round(max(0.0, self.first_token_s - self.started_s) * 1000, 3)

    @property
    def tokens_per_second(self) -> float | None:
        """Generation rate in tokens per second, over all choices, from the first token to the
        last."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        seconds = self.last_token_s - self.first_token_s
        return round((self.completion_tokens - 1) / seconds, 2) if seconds > 0 else None


# The record of the HTTP request that the current task serves. Tasks that this task starts inherit
# it.
current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


def record_prompt_tokens(prompt_tokens: int) -> None:
    """Set the number of prompt tokens in the record of the current request, if there is a current
    request."""
    record = current_record.get()
    if record is not None:
        record.prompt_tokens = prompt_tokens


def server_stopped() -> bool:
    """Tell whether the server closed the connection of the current request."""
    record = current_record.get()
    return record is not None and record.connection is not None and record.connection.stopped


def record_of_request() -> RequestRecord:
    """Return the record of the current request. `RequestContext` must have set it."""
    record = current_record.get()
    assert record is not None, "RequestContext must wrap the application"
    return record


def record_of_route(scope: Scope) -> RequestRecord:
    """Return the record of the current request after setting its route. The model is unknown until
    the body is read."""
    record = record_of_request()
    record.route, record.model = scope["route"].path_format, UNKNOWN_MODEL
    return record
