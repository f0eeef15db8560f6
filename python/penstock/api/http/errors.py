"""The exception handler around all routes: turns every exception into an HTTP response."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.codecs.messages.encode import error_body as message_error_body
from penstock.api.codecs.openai_envelope import error_body
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.observability.request_record import (
    CLIENT_CLOSED_STATUS,
    RequestRecord,
    record_of_request,
    server_stopped,
)
from penstock.base.errors import NotFound, ServiceError, Unavailable
from penstock.dialog import RunFailed
from penstock.dialog.fold import FailedRun

log = logging.getLogger(__name__)

RETRY_STATUSES: Final = (429, 503)
DEFAULT_RETRY_AFTER_S: Final = 1
# Routes that exist only if the operator allows clients to load adapters.
ADAPTER_UPDATES: Final = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
UPDATES_OFF: Final = (
    "clients may not load or unload adapters on this server; to allow it, start the server with"
    " SERVICE_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
)


class ClientDisconnected(Exception):
    """The client closed its connection, so that no response can be sent."""


class MethodNotAllowed(ServiceError):
    status = 405
    kind = "invalid_request_error"
    code = "method_not_allowed"


class RequestTimeout(ServiceError):
    status = 408
    kind = "invalid_request_error"
    code = "request_timeout"


class Errors:
    """Middleware that sends an error response for every exception of the wrapped app: the error
    JSON of the route's dialect, or an error event if a stream has started. An exception other than
    ServiceError is a bug in Penstock: it is logged and answered with 500, without its text."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_request()
        try:
            await self._app(scope, receive, send)
        except ClientDisconnected:
            _record_closed_connection(record)
        except asyncio.CancelledError:
            # Only the server cancels requests, after the drain timeout. This is the request's
            # outermost frame, so the cancellation ends here.
            await _answer(Unavailable("the server is shutting down"), record, send)
        except HTTPException as error:
            await _answer(_from_router(error, record), record, send, error.headers)
        except ServiceError as error:
            if error.status >= 500:
                log.warning("request %s: %s", record.id, error.message)
            await _answer(error, record, send)
        except Exception:
            log.exception("request %s failed", record.id)
            await _answer(ServiceError("internal error"), record, send)


def rewrite_error_field(error: ServiceError, field_paths: FieldPaths) -> ServiceError:
    """Return `error` with its field path rewritten to the path in the client's own JSON."""
    event = RunFailed.of(error)
    rewritten = field_paths.rewrite_failure(event)
    return error if rewritten is event else FailedRun(rewritten)


def _record_closed_connection(record: RequestRecord) -> None:
    """Record as outcome and status which side closed the connection: the client, or the server
    because it was stopped at once."""
    if server_stopped():
        record.outcome = "server_stopped"
        record.status = record.status or Unavailable.status
    else:
        record.outcome = "client_disconnected"
        record.status = record.status or CLIENT_CLOSED_STATUS


async def _answer(
    error: ServiceError,
    record: RequestRecord,
    send: Send,
    headers: object = None,
) -> None:
    record.outcome = "error"
    error = rewrite_error_field(error, record.field_paths)
    if not record.status:  # no response has started
        await _send_error(error, record, send, headers)
    elif record.encoder is not None:
        await send({"type": "http.response.body", "body": record.encoder.fail(error)})
    # If a JSON response has started, its body is incomplete and the server closes the connection.


async def _send_error(
    error: ServiceError, record: RequestRecord, send: Send, headers: object
) -> None:
    """Send the error JSON of the route's dialect. Retry-After is included if a retry may
    succeed."""
    if record.speaks_messages:
        body = message_error_body(error, record.id)
    else:
        body = error_body(error)
    fields = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if error.status in RETRY_STATUSES:
        fields.append((b"retry-after", b"%d" % (error.retry_after_s or DEFAULT_RETRY_AFTER_S)))
    if isinstance(headers, dict):
        fields += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def _from_router(error: HTTPException, record: RequestRecord) -> ServiceError:
    """Convert an exception of Starlette's router into a ServiceError: 405, or 404 for a disabled
    adapter route. The app itself answers other unknown paths."""
    if error.status_code == MethodNotAllowed.status:
        return MethodNotAllowed(f"{record.method} is not allowed on {record.path}")
    return NotFound(UPDATES_OFF, code="route_not_found")
