"""`GET /v1/models` and one of its cards."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from penstock.api.routes.generate import send_json
from penstock.api.services import DEFAULT_MODEL, Services


class ListModels:
    """The card `default` first, then each model."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [DEFAULT_MODEL, *self._services.models]
        cards = [_card(name, self._services) for name in names]
        await send_json(orjson.dumps({"object": "list", "data": cards}), send)


class GetModel:
    """One card, as the official clients ask for it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name: str = scope["path_params"]["model"]
        self._services.resolve(name)
        await send_json(orjson.dumps(_card(name, self._services)), send)


def _card(name: str, services: Services) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": services.created,
        "owned_by": "local",
        "root": name,
        "status": "loaded",
    }
