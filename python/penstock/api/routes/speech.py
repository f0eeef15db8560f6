"""Endpoint of `/v1/audio/speech`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.speech import (
    AudioFormat,
    DecodedSpeech,
    audio_head,
    content_type,
    decode,
)
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.routes.answers import with_stall_timeout
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services
from penstock.dialog import SpeechPiece


class SpeechEndpoint:
    """POST: speaks a text. The audio is sent sentence by sentence, as it is made; the status is
    sent with the first sentence. If the client disconnects, the request is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader: RequestReader[DecodedSpeech] = RequestReader(services, decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decoded, record = await self._reader.read(scope, receive)
        pieces = self._services.models[record.model].speak(decoded.request)
        await cancel_on_disconnect(self._send(pieces, decoded.format, scope, send), receive)

    async def _send(
        self,
        pieces: AsyncGenerator[SpeechPiece, None],
        form: AudioFormat,
        scope: Scope,
        send: Send,
    ) -> None:
        stall_s = self._services.settings.stall_timeout_s
        started = False
        async with aclosing(pieces):
            async for piece in pieces:
                body = piece.audio
                if not started:
                    headers = [(b"content-type", content_type(form, piece.sample_rate))]
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                    body = audio_head(form, piece.sample_rate) + body
                    started = True
                part = send({"type": "http.response.body", "body": body, "more_body": True})
                await with_stall_timeout(part, scope, stall_s)
        await with_stall_timeout(send({"type": "http.response.body"}), scope, stall_s)
