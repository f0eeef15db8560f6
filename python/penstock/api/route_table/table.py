"""All entries of the route table, and the Starlette routes that serve them."""

from __future__ import annotations

from typing import Final

from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import penstock.api.http.path_convertors  # noqa: F401 - registers the convertor `any`
from penstock.api.route_table import (
    files_and_sessions,
    inference,
    messages,
    models,
    page,
    responses,
    skills,
    ui_api,
    weights,
)
from penstock.api.route_table.operation import ANY_MEDIA, JSON, TEXT, Operation
from penstock.api.routes.docs import Docs, DocsAsset, OpenApi
from penstock.api.routes.health_and_metrics import ExposeMetrics, Health
from penstock.api.routes.system import Diagnose, GetSystemInfo
from penstock.api.schema.system import Diagnosis
from penstock.api.services import Services
from penstock.system.facts import SystemInfo

TAG: Final = "Operation"

# Routes are matched in this order, so fixed paths precede the patterns that would also match them.
OPERATIONS: Final[tuple[Operation, ...]] = (
    *inference.OPERATIONS,
    *responses.OPERATIONS,
    *messages.OPERATIONS,
    *files_and_sessions.FILES,
    *files_and_sessions.SESSIONS,
    *skills.OPERATIONS,
    *files_and_sessions.APPROVALS,
    *models.OPERATIONS,
    *weights.OPERATIONS,
    Operation(
        "POST /v1/system/doctor",
        Diagnose,
        id="diagnose",
        tag=TAG,
        summary="Check the machine; 200 even if a check fails, see its `status`",
        response=Diagnosis,
    ),
    Operation(
        "GET /v1/system/info",
        GetSystemInfo,
        id="systemInfo",
        tag=TAG,
        summary="Describe the machine and the build",
        response=SystemInfo,
    ),
    Operation(
        "GET /health",
        lambda services: Health(),
        id="health",
        tag=TAG,
        summary="Respond with 200 while the server runs, whatever the status of its models",
        media=TEXT,
    ),
    Operation(
        "GET /",
        lambda services: Health(),
        id="root",
        tag=TAG,
        summary="The same as `/health`",
        media=TEXT,
    ),
    Operation(
        "GET /metrics",
        ExposeMetrics,
        id="metrics",
        tag=TAG,
        summary="Metrics in Prometheus' text format",
        media=TEXT,
        errors=(503,),
        error=None,
    ),
    Operation(
        "GET /docs",
        lambda services: Docs(),
        id="docs",
        tag=TAG,
        summary="The interactive API explorer",
        media="text/html",
    ),
    Operation(
        "GET /docs/{asset:path}",
        lambda services: DocsAsset(),
        id="docsAsset",
        tag=TAG,
        summary="A file of the API explorer",
        media=ANY_MEDIA,
        errors=(404,),
    ),
    Operation(
        "GET /api-doc/openapi.json",
        lambda services: OpenApi(OPERATIONS),
        id="openapi",
        tag=TAG,
        summary="This OpenAPI document",
        media=JSON,
    ),
)

# The web page, which --no-ui removes.
PAGE_OPERATIONS: Final[tuple[Operation, ...]] = (*ui_api.OPERATIONS, *page.OPERATIONS)


def build_routes(services: Services) -> list[Route]:
    """Return one route per path that has an enabled operation, in the order of the table."""
    endpoints: dict[str, dict[str, ASGIApp]] = {}
    page_routes = () if services.settings.no_ui else PAGE_OPERATIONS
    for operation in (*OPERATIONS, *page_routes):
        if operation.enabled(services):
            by_method = endpoints.setdefault(operation.path, {})
            by_method[operation.method] = operation.endpoint(services)
    return [
        Route(path, _ByMethod(by_method), methods=list(by_method))
        for path, by_method in endpoints.items()
    ]


class _ByMethod:
    """Dispatches the requests for one path to the endpoint of their method. HEAD is answered like
    GET."""

    def __init__(self, endpoints: dict[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)
