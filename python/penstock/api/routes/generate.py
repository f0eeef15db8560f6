"""The endpoint that generates text, for all dialects."""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.dialect import AnswerIdentity, Dialect
from penstock.api.http.event_stream import EventStream, cancel_on_disconnect, fold_run
from penstock.api.routes.answers import send_json
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services
from penstock.base.ids import new_id


class GenerateEndpoint:
    """POST: answers a generation request in one dialect, with JSON or a stream of events."""

    def __init__(self, services: Services, dialect: Dialect) -> None:
        self._services = services
        self._dialect = dialect
        self._reader = RequestReader(services, partial(dialect.decode, compat=services.compat))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        decoded, record = await self._reader.read(scope, receive)
        request, writer = decoded.request, decoded.writer or self._dialect
        model = services.models[record.model]
        identity = AnswerIdentity(new_id(self._dialect.id_prefix), record.id)
        if decoded.stream:
            stream = EventStream(
                record,
                writer.encoder(identity, request),
                send,
                keep_alive_s=services.settings.keep_alive_interval_ms / 1000,
                stall_timeout_s=services.settings.stall_timeout_s,
                abort=scope.get("state", {}).get("abort"),
            )
            await stream.run(model.run(request), receive)
            return
        answer = await cancel_on_disconnect(fold_run(model.run(request)), receive)
        await send_json(writer.encode(identity, request, answer), send)
