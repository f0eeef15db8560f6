"""Endpoint of `/v1/images/generations`."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final
from uuid import uuid4

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.images import (
    DATA_URL,
    DecodedImages,
    decode,
    encode_files,
    encode_inline,
)
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.routes.answers import send_json
from penstock.api.routes.request_reader import RequestReader
from penstock.api.services import Services
from penstock.store.records import FileSource, NewFile

SOURCE: Final = FileSource("image_generation")
PURPOSE: Final = "agent_output"
PNG: Final = "image/png"


class ImageEndpoint:
    """POST: makes images from a prompt, and stores them as files or returns them in the answer. If
    the client disconnects, the request is cancelled."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._reader: RequestReader[DecodedImages] = RequestReader(services, decode)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        decoded, record = await self._reader.read(scope, receive)
        body = await cancel_on_disconnect(self._answer(decoded, record.model), receive)
        await send_json(body, send)

    async def _answer(self, decoded: DecodedImages, model: str) -> bytes:
        async with aclosing(self._services.models[model].paint(decoded.request)) as made:
            images = [image.png async for image in made]
        match decoded.format:
            case "file":
                return encode_files([await self._store(png) for png in images])
            case "data_url":
                return await asyncio.to_thread(encode_inline, images, DATA_URL)
            case "base64":
                return await asyncio.to_thread(encode_inline, images, "")

    async def _store(self, png: bytes) -> str:
        """Store an image. Return the name of the file, which is also its id."""
        name = f"image-generation-{uuid4()}.png"
        new = NewFile(name=name, data=png, source=SOURCE, purpose=PURPOSE, mime_type=PNG, id=name)
        await self._services.store.files.create(new)
        return name
