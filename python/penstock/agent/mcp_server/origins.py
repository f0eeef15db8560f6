"""Protection against web pages that reach the MCP server through a visitor's browser.

A page's own name can be made to resolve to this machine (DNS rebinding). Browsers then send that
name in `Host` and `Origin`, which an attacker cannot change.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.types import ASGIApp, Receive, Scope, Send


def loopback_checks(host: str) -> TransportSecuritySettings | None:
    """Return the package's checks of `Host` and `Origin` for a server that is bound to a loopback
    address; None for other addresses, whose names are not known."""
    if not _is_loopback(host):
        return None
    from mcp.server.transport_security import TransportSecuritySettings

    names = sorted({"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host})
    return TransportSecuritySettings(
        allowed_hosts=[*names, *(f"{name}:*" for name in names)],
        allowed_origins=[
            f"{scheme}://{name}{port}"
            for scheme in ("http", "https")
            for name in names
            for port in ("", ":*")
        ],
    )


class OriginCheck:
    """Refuses requests of web pages, except of pages from `host`, a loopback name or an IP address:
    only a domain name can be rebound."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app = app
        self._host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            origin = dict(scope["headers"]).get(b"origin")
            if origin is not None and not self._accepts(origin.decode("latin-1")):
                from starlette.responses import PlainTextResponse

                await PlainTextResponse("Invalid Origin header", 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _accepts(self, origin: str) -> bool:
        try:
            name = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        return name in (self._host, "localhost") or _address(name) is not None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None
