"""Reads the JSON bodies of the web page's requests, and sends its JSON."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from starlette.types import Scope, Send

from penstock.api.chats.records import encode_json
from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.observability.request_record import record_of_request
from penstock.api.routes.answers import JSON, send_json
from penstock.api.routes.request_reader import run_decoder
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest

_T = TypeVar("_T")


async def read_body(services: Services, scope: Scope, receive: Any, kind: type[_T]) -> _T:
    """Return the body of a request as an instance of the msgspec struct `kind`. Raises
    InvalidRequest, also for a body that is not declared as JSON, which an HTML form could send."""
    content_type = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip()
    if content_type.lower() != JSON.encode():
        raise InvalidRequest(f"the body must have the content type {JSON}")
    body = await services.bodies.read(record_of_request(), receive)
    return await run_decoder(partial(decode_body, kind=kind), body or b"{}")


async def send_struct(value: object, send: Send, *, status: int = 200) -> None:
    """Encode a value that may contain msgspec structs as JSON, and send it."""
    await send_json(encode_json(value), send, status=status)
