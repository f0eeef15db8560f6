"""Domain filters, applied to URLs as `penstock.fetch` reads them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

import httpx

from penstock.base.errors import InvalidRequest

MAX_URL_CHARS: Final = 4096
_MAX_SHOWN_CHARS: Final = 80
_HOST: Final = re.compile(r"[a-z0-9._:-]+")


class DomainFilter:
    """Decides which hosts a search may return and fetch.

    - `allowed`: domains to which hosts must belong; empty: all hosts are allowed.
    - `blocked`: domains to which hosts must not belong.

    Both are in lower case, in ASCII, without a dot at the end. Subdomains belong to a domain.
    """

    def __init__(self, allowed: Iterable[str] = (), blocked: Iterable[str] = ()) -> None:
        """Raises InvalidRequest for a text that is not a domain."""
        self.allowed = tuple(_domain_of(text, "allowed_domains") for text in allowed)
        self.blocked = tuple(_domain_of(text, "blocked_domains") for text in blocked)

    def allows_host(self, host: str) -> bool:
        """Tell whether a host name or address may be used. `host`: as in a URL, in ASCII."""
        host = _canonical(host)
        if any(_belongs(host, domain) for domain in self.blocked):
            return False
        return not self.allowed or any(_belongs(host, domain) for domain in self.allowed)

    def allows(self, url: str) -> bool:
        """Tell whether a page may be used: a valid http: or https: URL of an allowed host, without
        a user name."""
        host = host_of(url)
        return host is not None and self.allows_host(host)


def host_of(url: str) -> str | None:
    """Return the host of an http: or https: URL in ASCII and lower case, without a dot at the end.
    Returns None for any other text and for URLs with a user name."""
    if len(url) > MAX_URL_CHARS:
        return None
    try:
        parsed = httpx.URL(url)
        host = parsed.host and parsed.raw_host.decode("ascii")  # `host` checks international names
    except (httpx.InvalidURL, ValueError, TypeError):
        return None
    if parsed.scheme not in ("http", "https") or parsed.userinfo:
        return None
    # Programs disagree on other characters: for browsers, a backslash ends the host.
    return _canonical(host) or None if _HOST.fullmatch(host) else None


def _domain_of(text: str, field: str) -> str:
    """Return a domain of a filter in the form of `host_of`. Accepts a URL or a name with a
    wildcard, such as `*.example.com`, and ignores a path."""
    name = text.strip().removeprefix("*").removeprefix(".")
    host = host_of(name if "://" in name else f"http://{name}")
    if host is None:
        raise InvalidRequest(
            f"{text[:_MAX_SHOWN_CHARS]!r} is not a domain, such as example.com", field=field
        )
    return host


def _canonical(host: str) -> str:
    """Return a host without a dot at the end, an address in its usual notation."""
    host = host.lower().rstrip(".")
    address = _address_of(host)
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return host if address is None else str(address)


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        pass
    try:  # resolvers also read 2130706433, 0x7f.1 and the like as addresses
        return IPv4Address(socket.inet_aton(host)) if host and host[0].isdigit() else None
    except OSError:
        return None


def _belongs(host: str, domain: str) -> bool:
    if host == domain:
        return True
    return host.endswith(f".{domain}") and _address_of(host) is None
