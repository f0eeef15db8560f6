"""Gives every request its id and its record, and tells metrics and access log of it."""

from __future__ import annotations

import re
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.observability.access_log import AccessLog
from penstock.api.observability.metrics import Metrics
from penstock.api.observability.request_record import RequestRecord, current_record
from penstock.base.ids import new_id

ID_HEADER: Final = b"x-request-id"
# Anthropic's clients look for these.
MESSAGES_ID_HEADER: Final = b"request-id"
# What may be echoed and logged as it is: visible ASCII, bounded.
VALID_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
HOUSEKEEPING: Final = (
    *("/", "/health", "/metrics", "/ui"),
    *("/api-doc/openapi.json", "/docs", "/docs/{asset:path}"),
)


class RequestObservers:
    """Whoever wants to know when a request is understood and when it is over."""

    def __init__(
        self, metrics: Metrics | None, access_log: AccessLog | None, *, log_housekeeping: bool
    ) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._log_housekeeping = log_housekeeping

    def enter(self, record: RequestRecord) -> None:
        """The route and the model of `record` are known. Only the first call counts."""
        if record.entered:
            return
        record.entered = True
        if self._metrics is not None and not record.housekeeping:
            self._metrics.enter(record)
        if self._access_log is not None and self._logged(record):
            self._access_log.started(record)

    def leave(self, record: RequestRecord) -> None:
        """The last byte of the answer is out, or the client is gone."""
        duration_s = time.monotonic() - record.started_s
        self.enter(record)
        if self._metrics is not None and not record.housekeeping:
            self._metrics.leave(record, duration_s)
        if self._access_log is not None and self._logged(record):
            self._access_log.completed(record, duration_s)

    def _logged(self, record: RequestRecord) -> bool:
        return self._log_housekeeping or not record.housekeeping


class RequestContext:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, observers: RequestObservers, *, id_header: bool) -> None:
        self._app = app
        self._observers = observers
        self._id_header = id_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        record = _make_record(scope)
        current_record.set(record)

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                _name_route(record, scope)
                if self._id_header:
                    message["headers"] = [*message["headers"], *_id_headers(record)]
            await send(message)

        try:
            await self._app(scope, receive, with_id)
        finally:
            _name_route(record, scope)
            self._observers.leave(record)


def _id_headers(record: RequestRecord) -> list[tuple[bytes, bytes]]:
    value = record.id.encode()
    if record.speaks_messages:
        return [(ID_HEADER, value), (MESSAGES_ID_HEADER, value)]
    return [(ID_HEADER, value)]


def _make_record(scope: Scope) -> RequestRecord:
    headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of a name counts
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


def _name_route(record: RequestRecord, scope: Scope) -> None:
    route = scope.get("route")
    if route is not None:
        record.route = route.path_format
        record.housekeeping = record.housekeeping or route.path in HOUSEKEEPING
