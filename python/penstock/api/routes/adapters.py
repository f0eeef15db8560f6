"""`GET /v1/lora_adapters`."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from penstock.api.record import UNKNOWN_MODEL, current_record
from penstock.api.routes.answers import query_of
from penstock.api.services import Services
from penstock.base.errors import Conflict


class ListAdapters:
    """409 for every model, as none has a dynamic LoRA runtime; the query's `model` names it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = current_record.get()
        assert record is not None
        record.route, record.model = scope["route"].path, UNKNOWN_MODEL
        record.model = self._services.resolve(query_of(scope).get("model"))
        raise Conflict(
            f"the model '{record.model}' has no dynamic LoRA runtime",
            code="lora_runtime_unavailable",
        )
