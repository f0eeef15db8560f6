"""Endpoint of `/v1/messages/count_tokens`."""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.dialect import Dialect
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.routes.answers import send_value
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services


class CountTokens:
    """POST: returns the number of prompt tokens of a request in one dialect. Generates nothing."""

    def __init__(self, services: Services, dialect: Dialect) -> None:
        self._services = services
        self._reader = RequestReader(services, partial(dialect.decode, compat=services.compat))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decoded, record = await self._reader.read(scope, receive)
        counting = self._services.models[record.model].count(decoded.request)
        tokens = await cancel_on_disconnect(counting, receive)
        await send_value({"input_tokens": tokens}, send)
