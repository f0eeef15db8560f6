"""Endpoint of `/v1/embeddings`."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.embeddings import DecodedEmbedding, decode, encode
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.routes.answers import send_json
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services

# Responses with more bytes of vectors are encoded in a thread, so that they do not block the event
# loop.
THREAD_VECTOR_BYTES: Final = 64 * 1024


class EmbeddingEndpoint:
    """POST: returns the embedding vectors of the texts in the request. If the client disconnects,
    the request is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader: RequestReader[DecodedEmbedding] = RequestReader(services, decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decoded, record = await self._reader.read(scope, receive)
        loop = self._services.models[record.model]
        answer = await cancel_on_disconnect(loop.embed(decoded.request), receive)
        record.prompt_tokens = answer.prompt_tokens
        if len(answer.vectors) > THREAD_VECTOR_BYTES:
            text = await asyncio.to_thread(encode, answer, decoded.encoding)
        else:
            text = encode(answer, decoded.encoding)
        await send_json(text, send)
