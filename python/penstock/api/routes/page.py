"""Endpoints of `/ui`: the files of the web page. `packaging/build_page.py` builds them; a server
without them explains how to."""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from penstock.api.http.content_coding import preferred_coding
from penstock.base.errors import NotFound

# The folder of the built page.
BUILT: Final = Path(__file__).resolve().parents[1] / "ui" / "dist"
INDEX: Final = "index.html"
ASSETS: Final = "assets/"
# Paths of the page's own routes. Unknown ones get an error, not the page.
OWN_ROUTES: Final = re.compile(r"api(/.*)?", re.DOTALL)
# Names that the build gives to files: no folder, no leading dot.
ASSET_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
CONTENT_TYPES: Final = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".wasm": b"application/wasm",
    ".woff2": b"font/woff2",
}
# Content coding -> suffix of the compressed file beside the original, the smallest first.
CODINGS: Final = {b"br": ".br", b"gzip": ".gz"}
# The page may use this server only, and no other page may show it in a frame.
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    b" media-src 'self' blob:; font-src 'self'; connect-src 'self'; frame-ancestors 'none';"
    b" base-uri 'none'; form-action 'none'"
)
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(self), microphone=(self), geolocation=(), usb=(), serial=()"),
)
# The name of an asset has a digest of its content, so a copy never goes out of date.
IMMUTABLE: Final = b"public, max-age=31536000, immutable"
REVALIDATE: Final = b"no-cache"

STYLE: Final = (
    b"body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}"
    b"@media(prefers-color-scheme:dark){body{background:#15181c;color:#e4e7ea}a{color:#62c3da}}"
)
NOT_BUILT: Final = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Penstock: the web page is not built</title>
<style>%b</style>
</head>
<body>
<h1>The web page is not built</h1>
<p>The server works; only its page is absent, because the machine that built it had no Node and
could not get it.</p>
<p>In the sources, run <code>make ui</code>, then reload this page. It needs Node 20.19 or newer, or
access to PyPI and npm.</p>
<p><a href="/docs">The API explorer</a> needs no build.</p>
</body>
</html>
""" % (STYLE,)
NOT_BUILT_POLICY: Final = (
    b"default-src 'none'; style-src 'sha256-%b'; frame-ancestors 'none'; base-uri 'none';"
    b" form-action 'none'" % b64encode(hashlib.sha256(STYLE).digest())
)


@dataclass(frozen=True)
class _File:
    """A file to send. `coding`: the content coding of `body`; None: as it was built."""

    body: bytes
    coding: bytes | None
    content_type: bytes


class RedirectToPage:
    """GET /ui: redirects to `/ui/`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"location", b"ui/"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body"})


class PageFiles:
    """GET /ui/{path}: returns a file of `folder`, or the page for every other path, because the
    page itself reads its address. Raises NotFound for unknown files and unknown routes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path_params"]["path"]
        if OWN_ROUTES.fullmatch(path):
            raise NotFound(f"there is no route {scope['path']}", code="route_not_found")
        coding = preferred_coding(scope["headers"], tuple(CODINGS))
        if path.startswith(ASSETS):
            await self._send_asset(path.removeprefix(ASSETS), coding, send)
        elif "." in path.rpartition("/")[2]:
            raise NotFound("the web page has no such file", code="route_not_found")
        else:
            await self._send_page(coding, scope, send)

    async def _send_asset(self, name: str, coding: bytes | None, send: Send) -> None:
        kind = CONTENT_TYPES.get(Path(name).suffix)
        if kind is None or not ASSET_NAME.fullmatch(name):
            raise NotFound("the web page has no such file", code="route_not_found")
        path = self._folder / ASSETS / name
        file = await asyncio.to_thread(_read, path, kind, coding)
        if file is None:
            raise NotFound("the web page has no such file", code="route_not_found")
        await _send(send, 200, file, POLICY, [(b"cache-control", IMMUTABLE)])

    async def _send_page(self, coding: bytes | None, scope: Scope, send: Send) -> None:
        kind = CONTENT_TYPES[".html"]
        file = await asyncio.to_thread(_read, self._folder / INDEX, kind, coding)
        if file is None:
            missing = _File(NOT_BUILT, None, kind)
            await _send(send, 503, missing, NOT_BUILT_POLICY, [(b"cache-control", b"no-store")])
            return
        tag = b'"%b"' % hashlib.sha256(file.body).hexdigest()[:16].encode()
        headers = [(b"cache-control", REVALIDATE), (b"etag", tag)]
        known = [value for name, value in scope["headers"] if name == b"if-none-match"]
        if any(tag in value for value in known):
            headers.append((b"vary", b"accept-encoding"))
            await send({"type": "http.response.start", "status": 304, "headers": headers})
            await send({"type": "http.response.body"})
            return
        await _send(send, 200, file, POLICY, headers)


def _read(path: Path, content_type: bytes, coding: bytes | None) -> _File | None:
    """Read a file, or its compressed form if there is one. Returns None if there is no file."""
    try:
        if coding is not None:
            compressed = path.with_name(path.name + CODINGS[coding])
            if compressed.exists():
                return _File(compressed.read_bytes(), coding, content_type)
        return _File(path.read_bytes(), None, content_type)
    except (FileNotFoundError, IsADirectoryError):
        return None


async def _send(
    send: Send, status: int, file: _File, policy: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    sent = [
        *headers,
        *SECURITY_HEADERS,
        (b"content-security-policy", policy),
        (b"vary", b"accept-encoding"),
        (b"content-type", file.content_type),
        (b"content-length", b"%d" % len(file.body)),
    ]
    if file.coding is not None:
        sent.append((b"content-encoding", file.coding))
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": file.body})
