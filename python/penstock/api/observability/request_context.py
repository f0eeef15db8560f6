"""The outermost middleware: gives every request an id and a record, and reports its start and
end."""

from __future__ import annotations

import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.observability.access_log import AccessLog
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.request_log import RequestLog
from penstock.api.observability.request_record import RequestRecord, current_record
from penstock.base.ids import new_id

ID_HEADER: Final = b"x-request-id"
# Anthropic's clients read this header.
MESSAGES_ID_HEADER: Final = b"request-id"
# Request ids that may be echoed and logged unchanged: visible ASCII of limited length.
VALID_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
HOUSEKEEPING: Final = (
    *("/", "/health", "/metrics"),
    *("/api-doc/openapi.json", "/docs", "/docs/{asset:path}"),
)
# The web page and its own routes.
PAGE: Final = "/ui"


class RequestObservers:
    """Reports the start and the end of each request to the metrics and the access log. `log`: keeps
    the finished requests for the web page."""

    def __init__(
        self, metrics: Metrics | None, access_log: AccessLog | None, *, log_housekeeping: bool
    ) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._log_housekeeping = log_housekeeping
        self.log = RequestLog()

    def request_started(self, record: RequestRecord) -> None:
        """Report the start of a request, once its route and model are known. Does nothing if
        already called for this record."""
        if record.started:
            return
        record.started = True
        if self._metrics is not None and not record.housekeeping:
            self._metrics.request_started(record)
        if self._access_log is not None and self._is_logged(record):
            self._access_log.request_started(record)

    def request_finished(self, record: RequestRecord) -> None:
        """Report the end of a request: its last byte was sent or its client has disconnected."""
        duration_s = time.monotonic() - record.started_s
        self.request_started(record)
        if self._metrics is not None and not record.housekeeping:
            self._metrics.request_finished(record, duration_s)
        if self._access_log is not None and self._is_logged(record):
            self._access_log.request_finished(record, duration_s)
        if not record.housekeeping:
            self.log.add(record, duration_s)

    def _is_logged(self, record: RequestRecord) -> bool:
        return self._log_housekeeping or not record.housekeeping


class RequestContext:
    """The outermost middleware: sets `current_record` and adds the headers that contain the request
    id."""

    def __init__(self, app: ASGIApp, observers: RequestObservers, *, id_header: bool) -> None:
        self._app = app
        self._observers = observers
        self._id_header = id_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        record = _make_record(scope)
        current_record.set(record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                _set_route(record, scope)
                if self._id_header:
                    message["headers"] = [*message["headers"], *_id_headers(record)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            _set_route(record, scope)
            self._observers.request_finished(record)


def _id_headers(record: RequestRecord) -> list[tuple[bytes, bytes]]:
    value = record.id.encode()
    if record.speaks_messages:
        return [(ID_HEADER, value), (MESSAGES_ID_HEADER, value)]
    return [(ID_HEADER, value)]


def _make_record(scope: Scope) -> RequestRecord:
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first value of a name wins
    given, length = headers.get(ID_HEADER, b""), headers.get(b"content-length", b"")
    preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
    record = RequestRecord(
        id=given.decode() if VALID_REQUEST_ID.fullmatch(given) else new_id("req_"),
        method=scope["method"],
        path=scope["raw_path"].decode("ascii", "replace"),
        content_length=int(length) if length.isdigit() and len(length) < 19 else None,
        housekeeping=preflight,
    )
    record.connection = scope.get("state", {}).get("connection")
    return record


def _set_route(record: RequestRecord, scope: Scope) -> None:
    route = scope.get("route")
    if route is not None:
        record.route = route.path_format
        record.housekeeping |= route.path in HOUSEKEEPING or route.path.startswith(PAGE)
