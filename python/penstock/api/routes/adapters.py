"""`GET /v1/lora_adapters`, and the routes that load and unload adapters."""

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
from penstock.api.routes.request_reader import decoded_by
from penstock.api.services import Services
from penstock.base.errors import PayloadTooLarge
from penstock.engine.adapters.catalog import AdapterLoadRequest
from penstock.engine.types import AdapterState

KIND: Final = "lora_adapter"


class ListAdapters:
    """The aliases of a model, what the engine has of their generations, and the limits. Where the
    folders lie is told only where clients may load from them. 409 for a model without a runtime."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = record_of_route(scope)
        record.model = self._services.resolve(query_of(scope).get("model") or None)
        model = _with_runtime(self._services, record.model)
        await send_value(
            await listing(model, sources=self._services.adapter_updates),
            send,
        )


class LoadAdapter:
    """Load an adapter from a folder of the server; goes on if the client leaves."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, record = self._services, record_of_route(scope)
        decode = partial(decode_load, content_type=_content_type(scope))
        asked = await decoded_by(decode, await _body(services, record, receive))
        _enter(services, record, asked.model)
        order = AdapterLoadRequest(
            asked.name, asked.path, replace=asked.replace, expected=asked.expected
        )
        adapter = await services.control.load_adapter(record.model, order)
        await send_value(adapter_object(adapter, source=True), send)


class UnloadAdapter:
    """Forget an alias; running requests keep its generation."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, record = self._services, record_of_route(scope)
        decode = partial(decode_unload, content_type=_content_type(scope))
        asked = await decoded_by(decode, await _body(services, record, receive))
        _enter(services, record, asked.model)
        removed = await services.control.unload_adapter(record.model, asked.name, asked.expected)
        await send_value(adapter_object(removed, source=True), send)


def adapter_object(adapter: LoadedAdapter, *, source: bool) -> dict[str, Any]:
    """An alias as the routes show it."""
    shown = {
        "id": adapter.alias,
        "object": KIND,
        "generation": adapter.revision,
        "rank": adapter.rank,
        "bytes": adapter.size_bytes,
    }
    return {**shown, "source": adapter.source} if source else shown


async def listing(model: ServedModel, *, sources: bool) -> dict[str, Any]:
    """All that there is to know of a model's adapters."""
    states = {state.revision: state for state in await model.adapter_states()}
    adapters = model.adapters.all
    for adapter in adapters:  # an engine that is away has none
        missing = AdapterState(adapter.revision, adapter.rank, adapter.size_bytes, resident=False)
        states.setdefault(adapter.revision, missing)
    resident = [state for state in states.values() if state.resident]
    limits = model.adapters.limits
    return {
        "object": "list",
        "data": [adapter_object(adapter, source=sources) for adapter in adapters],
        "generations": [_generation(state, adapters) for state in states.values()],
        "resident_generations": len(resident),
        "retired_generations": sum(state.retired for state in states.values()),
        "resident_bytes": sum(state.bytes for state in resident),
        "max_adapters": limits.max_adapters,
        "max_rank": limits.max_rank,
        "max_bytes": limits.max_bytes,
    }


def _generation(state: AdapterState, adapters: tuple[LoadedAdapter, ...]) -> dict[str, Any]:
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


def _enter(services: Services, record: RequestRecord, model: str | None) -> None:
    """The model is known. Raises NotFound, and AdapterRefused where it has no runtime."""
    record.model = services.resolve(model)
    services.observers.enter(record)
    _with_runtime(services, record.model)


def _with_runtime(services: Services, name: str) -> ServedModel:
    model = services.models[name]
    if not model.adapters.available:
        raise AdapterRefused(
            "lora_runtime_unavailable", f"the model '{name}' has no dynamic LoRA runtime"
        )
    return model
