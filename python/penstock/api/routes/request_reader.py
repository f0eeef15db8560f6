"""From a request's body to what it asks for, with the record filled on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.embeddings import DecodedEmbedding
from penstock.api.codecs.request_fields.decode_body import model_of
from penstock.api.codecs.reranking import DecodedRerank
from penstock.api.codecs.responses import ResponsesRequest
from penstock.api.observability.request_record import UNKNOWN_MODEL, RequestRecord, record_of_route
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.dialog import EmbeddingRequest, GenerateRequest, RerankRequest

# Above this size decoding would hold up the other requests of the loop.
THREAD_BODY_BYTES: Final = 256 * 1024

Asked = TypeVar("Asked", Decoded, DecodedEmbedding, DecodedRerank, ResponsesRequest)
Request = GenerateRequest | EmbeddingRequest | RerankRequest

_T = TypeVar("_T")


async def decoded_by(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """What `decode` makes of a body; of a large one in a thread."""
    if len(body) > THREAD_BODY_BYTES:
        return await asyncio.to_thread(decode, body)
    return decode(body)


class RequestReader(Generic[Asked]):
    """Reads requests of one dialect, whose `decode` raises InvalidRequest."""

    def __init__(self, services: Services, decode: Callable[[bytes], Asked]) -> None:
        self._services = services
        self._decode_body: Callable[[bytes], Asked] = decode

    async def read(self, scope: Scope, receive: Receive) -> tuple[Asked, RequestRecord]:
        """The request, with the id of its model, or the alias that it used, and the adapter that it
        names as its model. Raises what `BodyReader.read` does, InvalidRequest, and NotFound for an
        unknown model."""
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        decoded = await self._decode(body, record)
        if not isinstance(decoded, DecodedEmbedding | DecodedRerank):
            record.field_paths = decoded.field_paths
        selection = services.models.select(decoded.request.model)
        record.model = selection.model
        record.streaming = decoded.stream
        services.observers.enter(record)
        request: Request = decoded.request
        settled: dict[str, object] = {"model": selection.echoed}
        if isinstance(request, GenerateRequest):
            settled["streamed"] = decoded.stream
        request = msgspec.structs.replace(request, **settled)
        if selection.adapter is not None:
            request = _with_adapter(request, selection.adapter)
        return msgspec.structs.replace(decoded, request=request), record

    async def _decode(self, body: bytes, record: RequestRecord) -> Asked:
        try:
            return await decoded_by(self._decode_body, body)
        except InvalidRequest:
            record.model = await self._model_label(body)
            raise

    async def _model_label(self, body: bytes) -> str:
        """The model of a request that cannot be decoded, for metrics and log."""
        try:
            return self._services.models.select(await decoded_by(model_of, body)).model
        except ServiceError:
            return UNKNOWN_MODEL


def _with_adapter(request: Request, alias: str) -> Request:
    """The request for the adapter that it names as its model. Raises InvalidRequest where it names
    another one besides."""
    if request.adapter is not None:
        raise InvalidRequest(
            "`model` names an adapter already; leave `adapter` out, or name the model",
            field="adapter",
        )
    return msgspec.structs.replace(request, adapter=alias)
