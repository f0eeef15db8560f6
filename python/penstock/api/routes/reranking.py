"""Endpoint of `/v1/rerank`, `/v2/rerank` and `/rerank`."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.reranking import DecodedRerank, decode, encode
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.routes.answers import send_json
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services


class RerankEndpoint:
    """POST: returns the documents of the request in order of their relevance to its query. If the
    client disconnects, the request is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader: RequestReader[DecodedRerank] = RequestReader(services, decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decoded, record = await self._reader.read(scope, receive)
        loop = self._services.models[record.model]
        answer = await cancel_on_disconnect(loop.rerank(decoded.request), receive)
        record.prompt_tokens = answer.prompt_tokens
        await send_json(encode(decoded, answer), send)
