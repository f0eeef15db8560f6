"""From a request's body to what it asks for, with the record filled on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.embeddings import DecodedEmbedding
from penstock.api.codecs.fields import model_of
from penstock.api.codecs.responses import ResponsesRequest
from penstock.api.record import UNKNOWN_MODEL, RequestRecord, current_record
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.dialog import EmbeddingRequest, GenerateRequest

# Above this size decoding would hold up the other requests of the loop.
THREAD_BODY_BYTES: Final = 256 * 1024

Asked = TypeVar("Asked", Decoded, DecodedEmbedding, ResponsesRequest)


class RequestReader(Generic[Asked]):
    """Reads requests of one dialect, whose `decode` raises InvalidRequest."""

    def __init__(self, services: Services, decode: Callable[[bytes], Asked]) -> None:
        self._services = services
        self._decode_body: Callable[[bytes], Asked] = decode

    async def read(self, scope: Scope, receive: Receive) -> tuple[Asked, RequestRecord]:
        """The request, with the id of its model, or the alias that it used. Raises what
        `BodyReader.read` does, InvalidRequest, and NotFound for an unknown model."""
        services = self._services
        record = current_record.get()
        assert record is not None
        record.route, record.model = scope["route"].path, UNKNOWN_MODEL
        body = await services.bodies.read(record, receive)
        decoded = await self._decode(body, record)
        record.model = services.resolve(decoded.request.model)
        record.streaming = decoded.stream
        services.observers.enter(record)
        request: GenerateRequest | EmbeddingRequest = decoded.request
        request = msgspec.structs.replace(request, model=services.models.echoed(request.model))
        if isinstance(request, GenerateRequest):
            request = msgspec.structs.replace(request, streamed=decoded.stream)
        return msgspec.structs.replace(decoded, request=request), record

    async def _decode(self, body: bytes, record: RequestRecord) -> Asked:
        try:
            if len(body) > THREAD_BODY_BYTES:
                return await asyncio.to_thread(self._decode_body, body)
            return self._decode_body(body)
        except InvalidRequest:
            record.model = self._model_label(body)
            raise

    def _model_label(self, body: bytes) -> str:
        """The model of a request that cannot be decoded, for metrics and log."""
        try:
            return self._services.resolve(model_of(body))
        except ServiceError:
            return UNKNOWN_MODEL
