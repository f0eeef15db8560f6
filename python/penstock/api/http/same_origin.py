"""Refuses requests that other web sites make with a visitor's browser.

The public API answers pages of any origin. Chats are private, so the routes of the web page answer
only the page itself and programs that are not browsers.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.base.errors import ServiceError

FROM_ELSEWHERE: Final = (b"cross-site", b"same-site")


class CrossSiteRequest(ServiceError):
    """403: another web site sent the request."""

    status = 403
    kind = "invalid_request_error"
    code = "cross_site_request"

    def __init__(self) -> None:
        super().__init__("the web page's own routes do not answer other web sites")


class SameOrigin:
    """Middleware around the routes of the web page. Raises CrossSiteRequest."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if headers.get(b"sec-fetch-site") in FROM_ELSEWHERE:
            raise CrossSiteRequest
        origin = headers.get(b"origin")
        if origin is not None and _authority(origin) != headers.get(b"host", b"").lower():
            raise CrossSiteRequest
        await self._app(scope, receive, send)


def _authority(origin: bytes) -> bytes:
    """Return host and port of an origin, as the Host header has them."""
    try:
        return urlsplit(origin.decode("latin-1")).netloc.lower().encode("latin-1")
    except ValueError:
        return b""
