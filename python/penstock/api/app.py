"""The ASGI application: routes inside, the middlewares around them."""

from __future__ import annotations

from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.codecs.chat import ChatDialect
from penstock.api.codecs.completions import CompletionsDialect
from penstock.api.codecs.messages import MessagesDialect
from penstock.api.context import RequestContext
from penstock.api.errors import Errors
from penstock.api.routes.count_tokens import CountTokens
from penstock.api.routes.generate import GenerateEndpoint
from penstock.api.routes.models import GetModel, ListModels
from penstock.api.routes.operations import ExposeMetrics, Health
from penstock.api.services import Services

CORS_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
# The second vendor's headers under both of their spellings.
CORS_HEADERS: Final = (
    "Content-Type",
    "Authorization",
    "x-api-key",
    "compat-version",
    "compat-beta",
    "anthropic-version",
    "anthropic-beta",
    "x-request-id",
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


class _Routes:
    """The router, with the routes whose paths are fixed found at once."""

    def __init__(self, services: Services) -> None:
        self._router = Router(
            [
                Route(
                    "/v1/chat/completions",
                    GenerateEndpoint(services, ChatDialect()),
                    methods=["POST"],
                ),
                Route(
                    "/v1/completions",
                    GenerateEndpoint(services, CompletionsDialect()),
                    methods=["POST"],
                ),
                Route(
                    "/v1/messages", GenerateEndpoint(services, MessagesDialect()), methods=["POST"]
                ),
                Route(
                    "/v1/messages/count_tokens",
                    CountTokens(services, MessagesDialect()),
                    methods=["POST"],
                ),
                Route("/v1/models", ListModels(services), methods=["GET"]),
                Route("/v1/models/{model:path}", GetModel(services), methods=["GET"]),
                Route("/health", Health(), methods=["GET"]),
                Route("/", Health(), methods=["GET"]),
                Route("/metrics", ExposeMetrics(services), methods=["GET"]),
            ],
            redirect_slashes=False,
        )
        self._fixed = {
            (method, route.path): route
            for route in self._router.routes
            if isinstance(route, Route) and not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises its 404 and 405 and does not answer itself
        route = self._fixed.get((scope["method"], scope["path"]))
        if route is None:
            await self._router(scope, receive, send)
            return
        scope["route"], scope["path_params"] = route, {}
        await route.app(scope, receive, send)
