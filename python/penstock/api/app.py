"""The ASGI application: the router and the middlewares around it."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.http.errors import ADAPTER_UPDATES, Errors
from penstock.api.http.unknown_routes import UNSUPPORTED, unknown_route
from penstock.api.observability.request_context import PAGE, RequestContext
from penstock.api.route_table.table import build_routes
from penstock.api.services import Services
from penstock.base.errors import NotFound

CORS_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
# Request headers that browsers may send: the usual ones, both spellings of Anthropic's headers, and
# the headers in which the official clients describe themselves and their account.
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
    # Chromium ignores a client's User-Agent; Firefox sends it and asks for permission.
    "User-Agent",
    "x-request-id",
    *(
        f"x-stainless-{suffix}"
        for suffix in (
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
    """Return the ASGI application of `services`. It has no lifespan events: the caller closes
    `services`."""
    app: ASGIApp = _Routes(services)
    app = Errors(app)
    app = _Cors(app)
    id_header = not services.settings.disable_request_id_header
    return RequestContext(app, services.observers, id_header=id_header)


class _Cors:
    """Middleware that adds CORS headers for browsers. Requests without an Origin header bypass it,
    and requests of the web page, which other web sites must not make."""

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
        from_page = scope["path"].startswith(PAGE)
        await (self._cors if from_browser and not from_page else self._app)(scope, receive, send)


class _Routes:
    """Routes requests by path. Paths without parameters are looked up in a dictionary first."""

    def __init__(self, services: Services) -> None:
        routes = build_routes(services)
        self._routes = routes
        self._router = Router(routes, redirect_slashes=False)
        self._fixed = {
            (method, route.path): route
            for route in routes
            if not route.param_convertors
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise its 404 and 405 instead of answering them
        path = scope["path"]
        route = self._fixed.get((scope["method"], path))
        if route is not None:
            scope["route"], scope["path_params"] = route, {}
            await route.app(scope, receive, send)
            return
        if path in UNSUPPORTED:
            raise NotFound(UNSUPPORTED[path], code="route_not_found")
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            if error.status_code != NotFound.status or path in ADAPTER_UPDATES:
                raise
            message = unknown_route(path, self._routes)
            raise NotFound(message, code="route_not_found") from None
