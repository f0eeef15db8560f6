"""The ASGI application: routes inside, the middlewares around them."""

from __future__ import annotations

from typing import Final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.codecs.chat import ChatDialect
from penstock.api.codecs.completions import CompletionsDialect
from penstock.api.context import RequestContext
from penstock.api.errors import Errors
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
    app = CORSMiddleware(
        app,
        allow_origins=("*",),
        allow_methods=CORS_METHODS,
        allow_headers=CORS_HEADERS,
        expose_headers=("x-request-id",),
    )
    id_header = not services.settings.disable_request_id_header
    return RequestContext(app, services.observers, id_header=id_header)


class _Routes:
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
                Route("/v1/models", ListModels(services), methods=["GET"]),
                Route("/v1/models/{model:path}", GetModel(services), methods=["GET"]),
                Route("/health", Health(), methods=["GET"]),
                Route("/", Health(), methods=["GET"]),
                Route("/metrics", ExposeMetrics(services), methods=["GET"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # so that the router raises its 404 and 405 and does not answer itself
        await self._router(scope, receive, send)
