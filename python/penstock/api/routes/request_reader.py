"""Reads and decodes the body of a request, resolves its model, and sets the fields of its
record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope

from penstock.api.codecs.dialect import Decoded
from penstock.api.codecs.embeddings import DecodedEmbedding
from penstock.api.codecs.images import DecodedImages
from penstock.api.codecs.request_fields.decode_body import model_of
from penstock.api.codecs.reranking import DecodedRerank
from penstock.api.codecs.responses import ResponsesRequest
from penstock.api.codecs.speech import DecodedSpeech
from penstock.api.observability.request_record import UNKNOWN_MODEL, RequestRecord, record_of_route
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest, ServiceError
from penstock.dialog import (
    EmbeddingRequest,
    GenerateRequest,
    RerankRequest,
    TextToImageRequest,
    TextToSpeechRequest,
)
from penstock.engine.refusals import unsupported
from penstock.engine.types import NO_IMAGES, NO_SPEECH

# Larger bodies are decoded in a thread, so that they do not block the event loop.
THREAD_BODY_BYTES: Final = 256 * 1024

Asked = TypeVar(
    "Asked",
    Decoded,
    DecodedEmbedding,
    DecodedImages,
    DecodedRerank,
    DecodedSpeech,
    ResponsesRequest,
)
MediaRequest = TextToSpeechRequest | TextToImageRequest
Request = GenerateRequest | EmbeddingRequest | RerankRequest | MediaRequest
WITHOUT_FIELD_PATHS: Final = (DecodedEmbedding, DecodedImages, DecodedRerank, DecodedSpeech)

_T = TypeVar("_T")


async def run_decoder(decode: Callable[[bytes], _T], body: bytes) -> _T:
    """Return `decode(body)`. If the body is large, run `decode` in a thread."""
    if len(body) > THREAD_BODY_BYTES:
        return await asyncio.to_thread(decode, body)
    return decode(body)


class RequestReader(Generic[Asked]):
    """Reads requests of one dialect. `decode` parses a body and raises InvalidRequest."""

    def __init__(self, services: Services, decode: Callable[[bytes], Asked]) -> None:
        self._services = services
        self._decode_body: Callable[[bytes], Asked] = decode

    async def read(self, scope: Scope, receive: Receive) -> tuple[Asked, RequestRecord]:
        """Read the body and return (decoded request, its record). The request's `model` becomes the
        resolved model id or alias; if the client named an adapter as the model, the request's
        `adapter` is set. Raises NotFound for an unknown model, InvalidRequest, and the exceptions
        of `BodyReader.read`."""
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        decoded = await self._decode(body, record)
        if not isinstance(decoded, WITHOUT_FIELD_PATHS):
            record.field_paths = decoded.field_paths
        selection = services.models.select(decoded.request.model)
        record.model = selection.model
        record.streaming = decoded.stream
        services.observers.request_started(record)
        request: Request = decoded.request
        resolved: dict[str, object] = {"model": selection.echoed}
        if isinstance(request, GenerateRequest):
            resolved["streamed"] = decoded.stream
        request = msgspec.structs.replace(request, **resolved)
        if selection.adapter is not None:
            request = _with_adapter(request, selection.adapter)
        return msgspec.structs.replace(decoded, request=request), record

    async def _decode(self, body: bytes, record: RequestRecord) -> Asked:
        try:
            return await run_decoder(self._decode_body, body)
        except InvalidRequest:
            record.model = await self._model_label(body)
            raise

    async def _model_label(self, body: bytes) -> str:
        """Return the model that a body names which cannot be decoded, for metrics and the access
        log."""
        try:
            return self._services.models.select(await run_decoder(model_of, body)).model
        except ServiceError:
            return UNKNOWN_MODEL


def _with_adapter(request: Request, alias: str) -> Request:
    """Return the request with its adapter set to `alias`, which it names as its model. Raises
    InvalidRequest if the request already has an `adapter`, or is one that no adapter answers."""
    if isinstance(request, MediaRequest):
        speaks = isinstance(request, TextToSpeechRequest)
        raise unsupported(NO_SPEECH if speaks else NO_IMAGES)
    if request.adapter is not None:
        raise InvalidRequest(
            "`model` already names an adapter; leave `adapter` out, or name the base model",
            field="adapter",
        )
    return msgspec.structs.replace(request, adapter=alias)
