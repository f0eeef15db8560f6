"""The record of one HTTP request while it is served, read by the metrics and the access log."""

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
# Never sent: the status in metrics and logs if the client disconnected before the response.
CLIENT_CLOSED_STATUS = 499


class Connection(Protocol):
    """A request's connection without ASGI and the middlewares: `uvicorn_protocol.DirectConnection`
    implements it."""

    @property
    def received(self) -> bool:
        """True once the whole request has arrived."""
        ...

    @property
    def ready(self) -> bool:
        """True while `write` would send a piece of an open stream at once."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece of a stream. Only while `ready`."""
        ...

    @property
    def stopped(self) -> bool:
        """True if the server closed the connection, not the client."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call `call` once when the client has disconnected, soon if it already has. None: cancel
        the callback."""
        ...


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request: its target, its outcome and its measurements.

    path: the path as the client wrote it, percent-encoded. `route`: the pattern that it matched.
    connection: None: everything goes through the middlewares.
    started: the request was reported as in flight, because its model is known.
    housekeeping: a health check or the like, which the metrics leave out.
    encoder: set once the head of an event stream was sent; encodes errors as events.
    field_paths: the paths of fields in the client's body.
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
        """True for Anthropic's path, also after a base URL that ends in /v1: errors then have
        Anthropic's envelope, and responses its id header."""
        path = self.path.removeprefix("/v1") if self.path.startswith("/v1/v1/") else self.path
        return path == MESSAGES or path.startswith(MESSAGES + "/")

    @property
    def first_token_ms(self) -> float | None:
        """Milliseconds from the request's head to its first generated token."""
        if self.first_token_s is None:
            return None
        return round(max(0.0, self.first_token_s - self.started_s) * 1000, 3)

    @property
    def tokens_per_second(self) -> float | None:
        """Rate of the generated tokens after the first, over all choices."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        seconds = self.last_token_s - self.first_token_s
        return round((self.completion_tokens - 1) / seconds, 2) if seconds > 0 else None


# The record of the request that the current task serves. Tasks that it starts inherit it.
current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


def record_prompt_tokens(prompt_tokens: int) -> None:
    """Set the number of prompt tokens of the current task's request, if it has one."""
    record = current_record.get()
    if record is not None:
        record.prompt_tokens = prompt_tokens


def server_stopped() -> bool:
    """Tell whether the server closed the connection of the current task's request."""
    record = current_record.get()
    return record is not None and record.connection is not None and record.connection.stopped


def record_of_request() -> RequestRecord:
    """Return the record of the current task's request, which `RequestContext` has made."""
    record = current_record.get()
    assert record is not None, "RequestContext must wrap the application"
    return record


def record_of_route(scope: Scope) -> RequestRecord:
    """Return the record and set its route. Its model is unknown until the body is read."""
    record = record_of_request()
    record.route, record.model = scope["route"].path_format, UNKNOWN_MODEL
    return record
