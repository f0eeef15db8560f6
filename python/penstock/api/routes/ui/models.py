"""Endpoints of the page's models: what the server offers, and downloads."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from starlette.types import Receive, Scope, Send

from penstock import __version__
from penstock.api.models.served_model import ServedModel
from penstock.api.routes.answers import query_of, send_value
from penstock.api.routes.ui.bodies import read_body, send_struct
from penstock.api.schema import fields as f
from penstock.api.services import Services
from penstock.base.errors import InvalidRequest
from penstock.config import read_environment
from penstock.models.hub.catalogue import CATALOGUE
from penstock.models.hub.sources import is_fetched

MAX_NUMBER_DIGITS: Final = 18


class GetServerInfo:
    """GET: describes the server, its models, its tools and what the page may do."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        info = {
            "version": __version__,
            "default_model": services.models.default,
            "models": [_model(model) for model in services.models.values()],
            **_tools(services),
            "features": {
                "adapters_mutable": services.adapter_updates,
                "metrics": services.metrics is not None,
                "pull_any": services.settings.enable_pull,
            },
        }
        await send_value(info, send)


class PullRequest(Struct):
    """The body of `POST /ui/api/models/pull`."""

    model: f.NonEmpty


class PullModel:
    """POST: starts to download a model. Returns the download. Raises InvalidRequest for a name that
    clients may not download."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = await read_body(self._services, scope, receive, PullRequest)
        if asked.model.lower() not in CATALOGUE and not self._services.settings.enable_pull:
            raise InvalidRequest(
                "only models of the catalogue can be downloaded here; to allow any model of the"
                " hub, start the server with --enable-pull",
                field="model",
                code="pull_not_allowed",
            )
        await send_struct(self._services.downloads.start(asked.model), send)


class ListPulls:
    """GET: returns the downloads, the last started first."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_struct(self._services.downloads.all, send)


class CancelPull:
    """DELETE: cancels a download, or removes one that has ended from the list."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_struct(self._services.downloads.cancel(scope["path_params"]["pull_id"]), send)


class ListCatalogue:
    """GET: returns the models that can be downloaded by a short name."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        home = read_environment().home
        entries = [
            {
                "name": entry.name,
                "description": entry.description,
                "bytes": entry.size_bytes,
                "licence": entry.licence,
                "fetched": is_fetched(entry, home),
            }
            for entry in CATALOGUE.values()
        ]
        await send_value(entries, send)


class ListRequests:
    """GET: returns the last requests of this process. `after` and `process`: only those with a
    higher number, if they were numbered by the process that an earlier answer named."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = query_of(scope)
        text = query.get("after", "0")
        if not (text.isascii() and text.isdigit() and len(text) < MAX_NUMBER_DIGITS):
            raise InvalidRequest("`after` must be the number of a request", field="after")
        newer = self._services.observers.log.after(int(text), query.get("process", ""))
        await send_struct(newer, send)


def _model(model: ServedModel) -> dict[str, Any]:
    found = model.modalities
    engine = model.engine
    sampling = model.sampling
    return {
        "id": model.id,
        "status": model.status,
        "error": model.failure,
        "modalities_in": () if found is None else found.inputs,
        "modalities_out": () if found is None else (found.output,),
        "context": None if engine is None else engine.info.max_model_len or None,
        "memory_bytes": None if engine is None else engine.info.memory_bytes or None,
        "sampling": {} if sampling is None else sampling.values,
        "voices": () if engine is None else engine.info.voices,
        "adapters": [adapter.alias for adapter in model.adapters.all],
        "lora": model.adapters.available,
        "reasoning": model.reasons,
        "tools": found is not None and found.output == "text",
    }


def _tools(services: Services) -> dict[str, Any]:
    tools = services.tools
    if tools is None:
        off = {"search": False, "code": False, "shell": False, "mcp": []}
        return {"tools": off, "agent_permission": None}
    settings = tools.settings
    on = {
        "search": settings.enable_search,
        "code": settings.enable_code_execution,
        "shell": settings.enable_shell,
        "mcp": [server.name for server in tools.mcp_status()],
    }
    return {"tools": on, "agent_permission": settings.agent_permission}
