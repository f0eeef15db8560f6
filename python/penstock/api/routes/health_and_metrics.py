"""Endpoints of `/health`, `/` and `/metrics`."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from penstock.api.observability.metrics import CONTENT_TYPE
from penstock.api.routes.answers import send_text
from penstock.api.services import Services


class Health:
    """GET: returns 200 while the server runs, whatever the state of its models."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_text(b"OK", send)


class ExposeMetrics:
    """GET: returns the metrics of all API processes and engines in Prometheus' text format."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._services.metrics
        if metrics is None:
            await send_text(b"metrics disabled", send, status=503)
            return
        if self._services.tools is not None:
            metrics.agent.show_state(self._services.tools)
        text = metrics.expose(await self._services.models.gauges())
        await send_text(text, send, content_type=CONTENT_TYPE)
