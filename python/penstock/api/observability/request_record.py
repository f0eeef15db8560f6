"""What is known of one HTTP request while it is served; metrics and the access log read it."""

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
# Nobody is there to read it; used in metrics and logs for clients that left before an answer.
CLIENT_CLOSED_STATUS = 499


class Connection(Protocol):
    """The connection of a request past ASGI and the middlewares (`protocol.DirectConnection`)."""

    @property
    def received(self) -> bool:
        """Whether all of the request is here."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a piece of an open stream would be sent now."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece while `ready`."""
        ...

    @property
    def stopped(self) -> bool:
        """Whether the server has ended it, and not the client."""
        ...

    def when_gone(self, call: Callable[[], None] | None) -> None:
        """Call once when the client is gone, or soon if it is; None: no more."""
        ...


@dataclass(slots=True)
class RequestRecord:
    """`path` is as the client wrote it, percent-encoded; `route` is the pattern it matched.

    `connection` None: all goes through the middlewares. `entered`: counted as in flight, once the
    model is known. `encoder`: set when the head of an event stream is out, so that an error can
    still be told in the stream's own form. `names`: how the client wrote its fields.
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
    entered: bool = False
    housekeeping: bool = False
    encoder: StreamEncoder | None = None
    names: FieldPaths = field(default_factory=FieldPaths)
    streaming: bool = False
    body_bytes: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def speaks_messages(self) -> bool:
        """Whether the client is Anthropic's by its path, also under a base URL that ends in /v1:
        then errors have its envelope, and ids its header."""
        path = self.path.removeprefix("/v1") if self.path.startswith("/v1/v1/") else self.path
        return path == MESSAGES or path.startswith(MESSAGES + "/")

    @property
    def first_token_ms(self) -> float | None:
        """From the request's head to the first token that was generated for it."""
        if self.first_token_s is None:
            return None
        return round(max(0.0, self.first_token_s - self.started_s) * 1000, 3)

    @property
    def tokens_per_second(self) -> float | None:
        """Of the generated tokens after the first, over all choices."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        seconds = self.last_token_s - self.first_token_s
        return round((self.completion_tokens - 1) / seconds, 2) if seconds > 0 else None


# The request that the running task works for; tasks that it starts inherit it.
current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


def record_prompt_tokens(prompt_tokens: int) -> None:
    """Tell the record of the request, if the running task works for one, how long its prompts
    are."""
    record = current_record.get()
    if record is not None:
        record.prompt_tokens = prompt_tokens


def server_stopped() -> bool:
    """Whether the server has ended the connection of the request that the running task works
    for."""
    record = current_record.get()
    return record is not None and record.connection is not None and record.connection.stopped


def record_of_request() -> RequestRecord:
    """The record of the request that is being answered; `RequestContext` has made it."""
    record = current_record.get()
    assert record is not None, "RequestContext is outside"
    return record


def record_of_route(scope: Scope) -> RequestRecord:
    """The same where the request names a model, which is not known before its body is read."""
    record = record_of_request()
    record.route, record.model = scope["route"].path_format, UNKNOWN_MODEL
    return record
