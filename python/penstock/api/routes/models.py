"""`GET /v1/models`, one of its cards, and the routes that load and unload models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.models.model_catalog import DEFAULT_MODEL
from penstock.api.models.served_model import ServedModel
from penstock.api.observability.request_record import record_of_route
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.anthropic import ACTIVE, is_anthropic_client, rfc3339
from penstock.api.routes.paging import envelope, page_of
from penstock.api.routes.request_reader import decoded_by
from penstock.api.schema.models import ModelOperationRequest, TuneModelRequest
from penstock.api.services import Services
from penstock.base.errors import Conflict
from penstock.models.loader.sampling_defaults import SamplingDefaults


class ListModels:
    """The card `default` first, then each model under each of its names, then each adapter; in the
    query a page."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._services.models
        names = (DEFAULT_MODEL, *models.names, *models.cards)
        page, more = page_of(names, query_of(scope), str)
        cards = [_shown(_card(name, self._services), scope) for name in page]
        whole = envelope(cards, more)
        answer = whole if is_anthropic_client(scope) else {"object": "list", "data": cards}
        await send_value(answer, send)


class GetModel:
    """One card, as the official clients ask for it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name: str = scope["path_params"]["model"]
        card = _shown(_card(name, self._services), scope)
        await send_value(card, send)


class ModelOperation:
    """POST `{"model_id"}`, act on the model, answer `{"model_id", "status"}`, and `error` where an
    operator should know of one. 404 for a model that is not configured."""

    def __init__(self, services: Services, act: Callable[[str], Awaitable[None]]) -> None:
        self._services = services
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        asked = await decoded_by(partial(decode_body, kind=ModelOperationRequest), body)
        record.model = services.models.resolve(asked.model_id, field="model_id")
        services.observers.enter(record)
        await self._act(record.model)
        model = services.models[record.model]
        answer = {"model_id": record.model, "status": model.status}
        if model.failure is not None:
            answer["error"] = model.failure
        await send_value(answer, send)


class TuneModel:
    """POST: 409 for every model. To tune is to choose how the weights are quantized as they are
    loaded, and no model here can be loaded so; the request is checked all the same."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        asked = await decoded_by(partial(decode_body, kind=TuneModelRequest), body)
        record.model = services.models.resolve(asked.model_id, field="model_id")
        services.observers.enter(record)
        raise Conflict(
            f"the model '{record.model}' cannot be tuned: its weights are served as stored,"
            " and this build does not quantize them while it loads",
            code="tuning_unavailable",
        )


def model_status(services: Services) -> ModelOperation:
    """What is so now."""

    async def nothing(model: str) -> None:
        return None

    return ModelOperation(services, nothing)


def unload_model(services: Services) -> ModelOperation:
    """Answers when running answers have finished and the memory is free; the unloading goes on if
    the client leaves."""
    return ModelOperation(services, services.control.unload)


def reload_model(services: Services) -> ModelOperation:
    """Answers when the model serves; 503 if it cannot be loaded."""

    async def load(model: str) -> None:
        await services.control.load(model)
        await services.models[model].ready()

    return ModelOperation(services, load)


def _shown(card: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """With what a client of Anthropic's API looks for."""
    if not is_anthropic_client(scope):
        return card
    return {
        **card,
        "type": "model",
        "display_name": card["id"],
        "created_at": rfc3339(card["created"]),
        "lifecycle": ACTIVE,
        "max_input_tokens": card["max_model_len"],
        "max_tokens": card["max_model_len"],
    }


def _card(name: str, services: Services) -> dict[str, Any]:
    """Of a model, or of an adapter by its qualified id. Raises NotFound for a name that nobody
    has."""
    adapter = services.models.cards.get(name)
    if adapter is not None:
        return {
            **_card(adapter.model, services),
            "id": name,
            "root": adapter.adapter.alias,
            "parent": adapter.model,
            "adapter_generation": adapter.adapter.revision,
        }
    resolved = services.resolve(name)
    model: ServedModel = services.models[resolved]
    engine = model.engine
    sampling = model.sampling
    return {
        "id": name,
        "object": "model",
        "created": services.created,
        "owned_by": "local",
        "root": name if name == DEFAULT_MODEL else resolved,
        "status": model.status,
        "tools_available": None,
        "mcp_tools_count": None,
        "mcp_servers_connected": None,
        "parent": None,
        "adapter_generation": None,
        "max_model_len": None if engine is None else engine.info.max_model_len,
        "sampling_defaults": None if sampling is None else _sampling(sampling),
    }


def _sampling(defaults: SamplingDefaults) -> dict[str, Any]:
    return {**defaults.values, "source": defaults.source, "options": list(defaults.options)}
