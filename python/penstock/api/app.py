"""The ASGI application: routes inside, the middlewares around them."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

import penstock.api.http.path_convertors  # noqa: F401 - the convertor that paths below name
from penstock.api.codecs.chat import ChatDialect
from penstock.api.codecs.completions import CompletionsDialect
from penstock.api.codecs.messages import MessagesDialect
from penstock.api.docs.operations import RERANK_OPERATIONS
from penstock.api.http.errors import ADAPTER_UPDATES, Errors
from penstock.api.http.unknown_routes import ABSENT, unknown_route
from penstock.api.observability.request_context import RequestContext
from penstock.api.routes.adapters import ListAdapters, LoadAdapter, UnloadAdapter
from penstock.api.routes.approvals import DecideApproval
from penstock.api.routes.count_tokens import CountTokens
from penstock.api.routes.docs import Docs, DocsAsset, OpenApi
from penstock.api.routes.embeddings import EmbeddingEndpoint
from penstock.api.routes.files import (
    DeleteFile,
    FileContent,
    GetContainerFile,
    GetFile,
    ListContainerFiles,
    ListFiles,
    UploadFile,
)
from penstock.api.routes.generate import GenerateEndpoint
from penstock.api.routes.health_and_metrics import ExposeMetrics, Health
from penstock.api.routes.models import (
    GetModel,
    ListModels,
    TuneModel,
    model_status,
    reload_model,
    unload_model,
)
from penstock.api.routes.reranking import RerankEndpoint
from penstock.api.routes.response_conversation import CountInputTokens
from penstock.api.routes.responses import CancelResponse, CreateResponse, InputItems, OneResponse
from penstock.api.routes.sessions import DeleteSession, ExportSession, ImportSession
from penstock.api.routes.skills import (
    AddSkillVersion,
    CreateSkill,
    DeleteSkill,
    DeleteSkillVersion,
    GetSkill,
    GetSkillVersion,
    ListSkills,
    ListSkillVersions,
)
from penstock.api.routes.system import Diagnose, GetSystemInfo
from penstock.api.services import Services
from penstock.base.errors import NotFound

CORS_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
# The specification's; Anthropic's under both of their spellings; and what the official
# clients say of themselves and of their accounts, which a browser must be allowed to send.
CORS_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "x-api-key",
    "compat-version",
    "compat-beta",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "openai-organization",
    "openai-project",
    "User-Agent",  # Chromium keeps its own; Firefox sends what the clients set, and asks for it
    "x-request-id",
    *(
        f"x-stainless-{what}"
        for what in (
            "arch",
            "async",
            "helper",
            "helper-method",
            "lang",
            "os",
            "package-version",
            "poll-helper",
            "read-timeout",
            "retry-count",
            "runtime",
            "runtime-version",
            "timeout",
        )
    ),
)


def create_app(services: Services) -> ASGIApp:
    """The application over its services. It has no lifespan: whoever built them closes them."""
    app: ASGIApp = _Routes(services)
    app = Errors(app)
    app = _Cors(app)
    id_header = not services.settings.disable_request_id_header
    return RequestContext(app, services.observers, id_header=id_header)


class _Cors:
    """What browsers ask for; other clients' messages do not go through it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cors = CORSMiddleware(
            app,
            allow_origins=("*",),
            allow_methods=CORS_METHODS,
            allow_headers=CORS_HEADERS,
            expose_headers=("x-request-id",),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from_browser = any(name == b"origin" for name, _ in scope["headers"])
        await (self._cors if from_browser else self._app)(scope, receive, send)


def all_routes(services: Services) -> list[Route]:
    """Every route, in the order in which they are tried: by path, but patterns last."""
    return [
        _route("/", GET=Health()),
        _route("/api-doc/openapi.json", GET=OpenApi()),
        _route("/docs", GET=Docs()),
        _route("/docs/{asset:path}", GET=DocsAsset()),
        _route("/health", GET=Health()),
        _route("/metrics", GET=ExposeMetrics(services)),
        _route("/v1/chat/completions", POST=GenerateEndpoint(services, ChatDialect())),
        _route("/v1/completions", POST=GenerateEndpoint(services, CompletionsDialect())),
        _route("/v1/embeddings", POST=EmbeddingEndpoint(services)),
        *_adapters(services),
        _route("/v1/messages", POST=GenerateEndpoint(services, MessagesDialect())),
        _route("/v1/messages/count_tokens", POST=CountTokens(services, MessagesDialect())),
        *_stored(services),
        _route("/v1/models", GET=ListModels(services)),
        _route("/v1/models/reload", POST=reload_model(services)),
        _route("/v1/models/status", POST=model_status(services)),
        _route("/v1/models/tune", POST=TuneModel(services)),
        _route("/v1/models/unload", POST=unload_model(services)),
        _route("/v1/models/{model:path}", GET=GetModel(services)),
        *(_route(path, POST=RerankEndpoint(services)) for path in RERANK_OPERATIONS),
        _route("/v1/responses", POST=CreateResponse(services)),
        _route("/v1/responses/input_tokens", POST=CountInputTokens(services)),
        Route(
            "/v1/responses/{response_id}",
            OneResponse(services),
            methods=["GET", "DELETE"],
        ),
        _route("/v1/responses/{response_id}/cancel", POST=CancelResponse(services.runs)),
        _route("/v1/responses/{response_id}/input_items", GET=InputItems(services.runs)),
        _route("/v1/system/doctor", POST=Diagnose()),
        _route("/v1/system/info", GET=GetSystemInfo()),
    ]


def _adapters(services: Services) -> list[Route]:
    """The routes of adapters; those that change something only where clients may."""
    listed = _route("/v1/lora_adapters", GET=ListAdapters(services))
    if not services.adapter_updates:
        return [listed]
    return [
        _route("/v1/load_lora_adapter", POST=LoadAdapter(services)),
        listed,
        _route("/v1/unload_lora_adapter", POST=UnloadAdapter(services)),
    ]


def _stored(services: Services) -> list[Route]:
    """The routes over what is stored."""
    content = FileContent(services)
    container = "/v1/containers/{container_id}/files"
    return [
        _route("/v1/agent/approvals/{approval_id}", POST=DecideApproval(services)),
        _route(container, GET=ListContainerFiles(services)),
        _route(container + "/{file_id}", GET=GetContainerFile(services)),
        _route(container + "/{file_id}/content", GET=content),
        _route("/v1/files", GET=ListFiles(services), POST=UploadFile(services)),
        _route("/v1/files/{file_id}", GET=GetFile(services), DELETE=DeleteFile(services)),
        _route("/v1/files/{file_id}/content", GET=content),
        _route(
            "/v1/sessions/{session_id:any}",
            GET=ExportSession(services),
            PUT=ImportSession(services),
            DELETE=DeleteSession(services),
        ),
        _route("/v1/skills", GET=ListSkills(services), POST=CreateSkill(services)),
        _route("/v1/skills/{skill_id}", GET=GetSkill(services), DELETE=DeleteSkill(services)),
        _route(
            "/v1/skills/{skill_id}/versions",
            GET=ListSkillVersions(services),
            POST=AddSkillVersion(services),
        ),
        _route(
            "/v1/skills/{skill_id}/versions/{version}",
            GET=GetSkillVersion(services),
            DELETE=DeleteSkillVersion(services),
        ),
    ]


def _route(path: str, **endpoints: ASGIApp) -> Route:
    """One path with an endpoint for each of its methods."""
    return Route(path, _ByMethod(endpoints), methods=list(endpoints))


class _ByMethod:
    def __init__(self, endpoints: dict[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)


class _Routes:
    """The router, with the routes whose paths are fixed found at once."""

    def __init__(self, services: Services) -> None:
        routes = all_routes(services)
        self._routes = routes
        self._router = Router(routes, redirect_slashes=False)
        self._fixed = {
            (method, route.path): route
            for route in routes
            if not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises its 404 and 405 and does not answer itself
        route = self._fixed.get((scope["method"], scope["path"]))
        if route is None:
            path = scope["path"]
            if path in ABSENT:
                raise NotFound(ABSENT[path], code="route_not_found")
            try:
                await self._router(scope, receive, send)
            except HTTPException as error:
                if error.status_code != NotFound.status or path in ADAPTER_UPDATES:
                    raise
                told = unknown_route(path, self._routes)
                raise NotFound(told, code="route_not_found") from None
            return
        scope["route"], scope["path_params"] = route, {}
        await route.app(scope, receive, send)
