"""Endpoints of `/v1/models`: the cards of models, and loading and unloading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.codecs.request_fields.decode_body import decode_body
from penstock.api.http.event_stream import cancel_on_disconnect
from penstock.api.models.model_catalog import DEFAULT_MODEL
from penstock.api.models.served_model import ServedModel
from penstock.api.observability.request_record import record_of_route
from penstock.api.routes.answers import query_of, send_json, send_value
from penstock.api.routes.anthropic import ACTIVE, is_anthropic_client, rfc3339
from penstock.api.routes.paging import envelope, page_of
from penstock.api.routes.request_reader import run_decoder
from penstock.api.schema.models import ModelOperationRequest
from penstock.api.services import Services
from penstock.config import EngineSettings
from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.sources import HUB_ID
from penstock.models.loader.sampling_defaults import SamplingDefaults
from penstock.tune.outcome import TuneJob
from penstock.tune.types import TuneModelRequest


class ListModels:
    """GET: returns a page of model cards: `default` first, then one card per name of each model,
    then one per adapter."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._services.models
        names = (DEFAULT_MODEL, *models.names, *models.cards)
        page, more = page_of(names, query_of(scope), str)
        cards = [_card_for_client(name, self._services, scope) for name in page]
        whole = envelope(cards, more)
        answer = whole if is_anthropic_client(scope) else {"object": "list", "data": cards}
        await send_value(answer, send)


class GetModel:
    """GET: returns the card of one model or adapter. Raises NotFound."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name: str = scope["path_params"]["model"]
        await send_value(_card_for_client(name, self._services, scope), send)


class ModelOperation:
    """POST `{"model_id"}`: calls `act` with the model's id and returns `{"model_id", "status"}`,
    with `error` if the last load of the model failed. Raises NotFound for a model that is not
    configured."""

    def __init__(self, services: Services, act: Callable[[str], Awaitable[None]]) -> None:
        self._services = services
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        asked = await run_decoder(partial(decode_body, kind=ModelOperationRequest), body)
        record.model = services.models.resolve(asked.model_id, field="model_id")
        services.observers.request_started(record)
        await self._act(record.model)
        model = services.models[record.model]
        answer = {"model_id": record.model, "status": model.status}
        if model.failure is not None:
            answer["error"] = model.failure
        await send_value(answer, send)


class TuneModel:
    """POST: finds settings for a model of this server or of the hub, in a process of its own. If
    the client disconnects, the process is killed. Raises NotFound for a name that neither knows."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record = record_of_route(scope)
        body = await services.bodies.read(record, receive)
        asked = await run_decoder(partial(decode_body, kind=TuneModelRequest), body)
        job = self._job(asked)
        if job.is_served:
            record.model = job.model_id
        services.observers.request_started(record)
        answer = await cancel_on_disconnect(services.tuner.run(job), receive)
        await send_json(msgspec.json.encode(answer), send)

    def _job(self, asked: TuneModelRequest) -> TuneJob:
        """Return the job for a request. Raises NotFound (`model_not_found`) for a name that is
        neither a model of this server, nor in the catalogue, nor a hub id."""
        models = self._services.models
        name = asked.model_id
        on_hub = name.lower() in CATALOGUE or HUB_ID.fullmatch(name) is not None
        if on_hub and name not in models:
            engine = EngineSettings(model=name)
            return TuneJob(asked, engine, model_id=name, origin="client")
        served = models[models.resolve(name, field="model_id")]
        running = served.engine
        return TuneJob(
            asked,
            served.settings or EngineSettings(model=served.id),
            model_id=served.id,
            origin="client",
            is_served=True,
            held_bytes=0 if running is None else running.info.memory_bytes,
        )


def model_status(services: Services) -> ModelOperation:
    """Return the endpoint that reports a model's status and changes nothing."""

    async def do_nothing(model: str) -> None:
        return None

    return ModelOperation(services, do_nothing)


def unload_model(services: Services) -> ModelOperation:
    """Return the endpoint that unloads a model. It responds once running requests have finished and
    the memory is free. If the client disconnects, the unload continues."""
    return ModelOperation(services, services.control.unload)


def reload_model(services: Services) -> ModelOperation:
    """Return the endpoint that loads a model. It responds once the model serves, or with 503 if the
    model cannot be loaded."""

    async def load(model: str) -> None:
        await services.control.load(model)
        await services.models[model].ready()

    return ModelOperation(services, load)


def _card_for_client(name: str, services: Services, scope: Scope) -> dict[str, Any]:
    """Return the card called `name`, with the fields of Anthropic's API if the client uses that
    API. Raises NotFound."""
    card = _card(name, services)
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
    """Return the card of a model (by id or alias) or of an adapter (by qualified id). Raises
    NotFound."""
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
        **_external_tools(services),
        "parent": None,
        "adapter_generation": None,
        "max_model_len": None if engine is None else engine.info.max_model_len or None,
        "sampling_defaults": None if sampling is None else _sampling(sampling),
        "architecture": _architecture(model),
        **({} if engine is None or not engine.info.voices else {"voices": engine.info.voices}),
    }


def _architecture(model: ServedModel) -> dict[str, Any] | None:
    """Return the modalities of a model, None if it is not loaded."""
    found = model.modalities
    if found is None:
        return None
    return {"input_modalities": found.inputs, "output_modalities": [found.output]}


def _external_tools(services: Services) -> dict[str, Any]:
    """Return the fields about MCP servers, null without a configuration of MCP servers."""
    servers = () if services.tools is None else services.tools.mcp_status()
    if not servers:
        return dict.fromkeys(("tools_available", "mcp_tools_count", "mcp_servers_connected"))
    num_tools = sum(server.tools for server in servers)
    return {
        "tools_available": num_tools > 0,
        "mcp_tools_count": num_tools,
        "mcp_servers_connected": sum(server.connected for server in servers),
    }


def _sampling(defaults: SamplingDefaults) -> dict[str, Any]:
    return {**defaults.values, "source": defaults.source, "options": list(defaults.options)}
