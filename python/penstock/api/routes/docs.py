"""Endpoints of `/docs` and `/api-doc/openapi.json`: the OpenAPI document and an explorer page that
works offline."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.docs.openapi import build_document
from penstock.api.route_table.operation import Operation
from penstock.base.errors import NotFound

BUNDLE: Final = "openapi-ui-bundles"
# File of the explorer's package that is served -> content type. Other files are not served.
ASSETS: Final = {
    "swagger-ui.css": b"text/css; charset=utf-8",
    "swagger-ui-bundle.js": b"text/javascript; charset=utf-8",
    "favicon-32x32.png": b"image/png",
}
PAGE: Final = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock: the API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<style>
body { margin: 0 }
.swagger-ui .response-col_links, .swagger-ui .operation-servers,
.swagger-ui .scheme-container { display: none !important }
@media (max-width: 600px) {
  .swagger-ui .wrapper { padding: 0 8px }
  .swagger-ui .responses-inner, .swagger-ui .opblock-description-wrapper { padding: 10px }
  .swagger-ui .responses-table thead { display: none }
  .swagger-ui .responses-table tr, .swagger-ui .responses-table td { display: block; width: auto }
  .swagger-ui .opblock-summary-path, .swagger-ui .opblock-summary-description { padding: 0 4px }
}
</style>
</head>
<body>
<div id="explorer"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({
  url: "api-doc/openapi.json", dom_id: "#explorer", deepLinking: true, validatorUrl: null,
  tryItOutEnabled: true, defaultModelsExpandDepth: 0, displayRequestDuration: true
});
</script>
</body>
</html>
"""
# Content security policy: the page may load resources from this server only.
POLICY: Final = (
    b"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = ((b"content-security-policy", POLICY),)
HTML: Final = b"text/html; charset=utf-8"
# Clients revalidate their copies: the page and the document change with the server's version, the
# explorer's files with the version of their package.
REVALIDATE: Final = b"no-cache"
A_DAY: Final = b"public, max-age=86400"


@dataclass(frozen=True)
class _StaticBody:
    """A response body with its entity tag and headers."""

    body: bytes
    content_type: bytes
    tag: bytes
    cache_control: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Docs:
    """GET /docs: returns the explorer's page."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send(_StaticBody(PAGE, HTML, _tag(PAGE), REVALIDATE, PAGE_HEADERS), scope, send)


class DocsAsset:
    """GET /docs/{asset}: returns a file of the explorer from its installed package, and redirects
    `/docs/` to `/docs`. Raises NotFound for any other path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name: str = scope["path_params"]["asset"]
        if not name:
            await _redirect(send, b"../docs")
            return
        kind = ASSETS.get(name)
        if kind is None:
            raise NotFound("the explorer has no such file", code="route_not_found")
        body, tag = await asyncio.to_thread(_asset, name)
        await _send(_StaticBody(body, kind, tag, A_DAY), scope, send)


class OpenApi:
    """GET /api-doc/openapi.json: returns the OpenAPI document of `operations`."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._document = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._document:  # built on the first request, so as not to delay the start
            self._document = await asyncio.to_thread(self._encode)
        body = self._document
        await _send(_StaticBody(body, b"application/json", _tag(body), REVALIDATE), scope, send)

    def _encode(self) -> bytes:
        return msgspec.json.encode(build_document(self._operations))


async def _redirect(send: Send, location: bytes) -> None:
    headers = [(b"location", location), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body"})


def _asset(name: str) -> tuple[bytes, bytes]:
    """Return (content, entity tag) of a file of the explorer."""
    folder = files("openapi_ui_bundles") / "swagger_ui" / "vendor"
    return (folder / name).read_bytes(), b'"%b"' % version(BUNDLE).encode()


def _tag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.sha256(body).hexdigest()[:16].encode()


async def _send(served: _StaticBody, scope: Scope, send: Send) -> None:
    """Send 200 with the body, or 304 if the entity tag in the request is current."""
    headers = [(b"etag", served.tag), (b"cache-control", served.cache_control), *served.headers]
    known = [value for name, value in scope["headers"] if name == b"if-none-match"]
    if any(served.tag in value for value in known):
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b""})
        return
    headers += [
        (b"content-type", served.content_type),
        (b"content-length", b"%d" % len(served.body)),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": served.body})
