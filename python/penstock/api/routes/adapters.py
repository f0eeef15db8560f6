"""Endpoints of `/v1/lora_adapters`, `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from penstock.adapters.errors import AdapterRefused
from penstock.adapters.registry import LoadedAdapter
from penstock.api.codecs.adapters import decode_load, decode_unload
from penstock.api.models.served_model import ServedModel
from penstock.api.observability.request_record import RequestRecord, record_of_route
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.request_reader import run_decoder
from penstock.api.services import Services
from penstock.base.errors import PayloadTooLarge
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.types import AdapterState

KIND: Final = "lora_adapter"


class ListAdapters:
    """GET /v1/lora_adapters: returns a model's adapter aliases, the revisions in its engine, and
    its LoRA limits. Source folders are included only if clients may load adapters. Raises NotFound
    for an unknown model, AdapterRefused for a model without a LoRA runtime."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_route(scope)
        record.model = self._services.resolve(query_of(scope).get("model") or None)
        model = _model_with_lora(self._services, record.model)
        await send_value(await listing(model, sources=self._services.adapter_updates), send)


class LoadAdapter:
    """POST /v1/load_lora_adapter: loads an adapter from a folder on the server. If the client
    disconnects, the load continues."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, record = self._services, record_of_route(scope)
        decode = partial(decode_load, content_type=_content_type(scope))
        decoded = await run_decoder(decode, await _body(services, record, receive))
        _set_model(services, record, decoded.model)
        order = AdapterLoadRequest(
            decoded.name, decoded.path, replace=decoded.replace, expected=decoded.expected
        )
        adapter = await services.control.load_adapter(record.model, order)
        await send_value(adapter_object(adapter, source=True), send)


class UnloadAdapter:
    """POST /v1/unload_lora_adapter: removes an adapter alias. Running requests keep the revision
    that they use."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, record = self._services, record_of_route(scope)
        decode = partial(decode_unload, content_type=_content_type(scope))
        decoded = await run_decoder(decode, await _body(services, record, receive))
        _set_model(services, record, decoded.model)
        removed = await services.control.unload_adapter(
            record.model, decoded.name, decoded.expected
        )
        await send_value(adapter_object(removed, source=True), send)


def adapter_object(adapter: LoadedAdapter, *, source: bool) -> dict[str, Any]:
    """Return the JSON object of a loaded adapter. `source`: include its source folder."""
    fields = {
        "id": adapter.alias,
        "object": KIND,
        "generation": adapter.revision,
        "rank": adapter.rank,
        "bytes": adapter.size_bytes,
    }
    return {**fields, "source": adapter.source} if source else fields


async def listing(model: ServedModel, *, sources: bool) -> dict[str, Any]:
    """Return the JSON list of a model's adapters and revisions. `sources`: include source
    folders."""
    states = {state.revision: state for state in await model.adapter_states()}
    adapters = model.adapters.all
    for adapter in adapters:  # an engine without a connection reports no states
        missing = AdapterState(adapter.revision, adapter.rank, adapter.size_bytes, resident=False)
        states.setdefault(adapter.revision, missing)
    resident = [state for state in states.values() if state.resident]
    limits = model.adapters.limits
    return {
        "object": "list",
        "data": [adapter_object(adapter, source=sources) for adapter in adapters],
        "generations": [_revision_object(state, adapters) for state in states.values()],
        "resident_generations": len(resident),
        "retired_generations": sum(state.retired for state in states.values()),
        "resident_bytes": sum(state.bytes for state in resident),
        "max_adapters": limits.max_adapters,
        "max_rank": limits.max_rank,
        "max_bytes": limits.max_bytes,
    }


def _revision_object(state: AdapterState, adapters: tuple[LoadedAdapter, ...]) -> dict[str, Any]:
    return {
        "generation": state.revision,
        "aliases": [a.alias for a in adapters if a.revision == state.revision],
        "rank": state.rank,
        "bytes": state.bytes,
        "retired": state.retired,
        "active_leases": state.active_leases,
        "resident": state.resident,
    }


async def _body(services: Services, record: RequestRecord, receive: Receive) -> bytes:
    try:
        return await services.bodies.read(record, receive)
    except PayloadTooLarge as error:
        raise PayloadTooLarge(error.message, code="request_body_too_large") from None


def _content_type(scope: Scope) -> bytes:
    return next((value for name, value in scope["headers"] if name == b"content-type"), b"")


def _set_model(services: Services, record: RequestRecord, model: str | None) -> None:
    """Set the model in the request's record and report the start of the request. Raises NotFound,
    and AdapterRefused for a model without a LoRA runtime."""
    record.model = services.resolve(model)
    services.observers.request_started(record)
    _model_with_lora(services, record.model)


def _model_with_lora(services: Services, name: str) -> ServedModel:
    model = services.models[name]
    if not model.adapters.available:
        raise AdapterRefused(
            "lora_runtime_unavailable", f"the model '{name}' has no dynamic LoRA runtime"
        )
    return model
