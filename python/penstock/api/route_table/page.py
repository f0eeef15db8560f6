"""Entries of the route table: the files of the web page. They are not part of the API, so its
OpenAPI document lacks them."""

from __future__ import annotations

from typing import Final

from penstock.api.route_table.operation import ANY_MEDIA, Operation
from penstock.api.routes.page import BUILT, PageFiles, RedirectToPage

TAG: Final = "Web page"

OPERATIONS: Final = (
    Operation(
        "GET /ui",
        lambda services: RedirectToPage(),
        id="page",
        tag=TAG,
        summary="Redirect to the web page",
        media=None,
    ),
    Operation(
        "GET /ui/{path:path}",
        lambda services: PageFiles(BUILT),
        id="pageFile",
        tag=TAG,
        summary="The web page and its files",
        media=ANY_MEDIA,
        errors=(404, 503),
    ),
)
