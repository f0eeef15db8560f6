"""The endpoints that generate text; what they speak is the dialect's affair."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from penstock import __version__
from penstock.api.codecs.dialect import AnswerIdentity, Decoded, Dialect
from penstock.api.codecs.fields import model_of
from penstock.api.record import UNKNOWN_MODEL, RequestRecord, current_record
from penstock.api.services import Services
from penstock.api.streaming import EventStream, fold_run, unless_gone
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.base.ids import new_id

# Above this size decoding would hold up the other requests of the loop.
THREAD_BODY_BYTES: Final = 256 * 1024


class GenerateEndpoint:
    """POST a request of one dialect; get JSON, or a stream of events."""

    def __init__(self, services: Services, dialect: Dialect) -> None:
        self._services = services
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record = current_record.get()
        assert record is not None
        record.route, record.model = scope["route"].path, UNKNOWN_MODEL
        body = await services.bodies.read(record, receive)
        decoded = await self._decode(body, record)
        del body
        record.model = services.resolve(decoded.request.model)
        record.streaming = decoded.stream
        services.observers.enter(record)
        identity = AnswerIdentity(new_id(self._dialect.id_prefix), self._fingerprint())
        request = msgspec.structs.replace(
            decoded.request, model=record.model, streamed=decoded.stream
        )
        events = services.models[record.model].run(request)
        if decoded.stream:
            stream = EventStream(
                record,
                self._dialect.encoder(identity, request),
                send,
                keep_alive_s=services.settings.keep_alive_interval_ms / 1000,
                stall_timeout_s=services.settings.stall_timeout_s,
                abort=scope.get("state", {}).get("abort"),
            )
            await stream.run(events, receive)
            return
        answer = await unless_gone(fold_run(events), receive)
        await send_json(self._dialect.encode(identity, request, answer), send)

    async def _decode(self, body: bytes, record: RequestRecord) -> Decoded:
        try:
            if len(body) > THREAD_BODY_BYTES:
                return await asyncio.to_thread(self._dialect.decode, body)
            return self._dialect.decode(body)
        except InvalidRequest:
            record.model = self._model_label(body)
            raise

    def _model_label(self, body: bytes) -> str:
        """The model of a request that cannot be decoded, for metrics and log."""
        try:
            return self._services.resolve(model_of(body))
        except ServiceError:
            return UNKNOWN_MODEL

    def _fingerprint(self) -> str:
        return f"penstock-{__version__}-{self._services.engine.info.fingerprint}"


async def send_json(body: bytes, send: Send) -> None:
    """Send a finished 200 answer."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
