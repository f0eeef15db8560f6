"""`/health`, `/` and `/metrics`."""

from __future__ import annotations

from typing import Final

from starlette.types import Receive, Scope, Send

from penstock.api.metrics import CONTENT_TYPE
from penstock.api.services import Services

PLAIN_TEXT: Final = "text/plain; charset=utf-8"


class Health:
    """200 while the server is up; says nothing of the model."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_text(200, b"OK", send)


class ExposeMetrics:
    """The exposition of all API processes and of the engines."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._services.metrics
        if metrics is None:
            await send_text(503, b"metrics disabled", send)
            return
        text = metrics.expose(await self._services.models.gauges())
        await send_text(200, text, send, content_type=CONTENT_TYPE)


async def send_text(
    status: int, body: bytes, send: Send, *, content_type: str = PLAIN_TEXT
) -> None:
    """Send a finished text answer."""
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
