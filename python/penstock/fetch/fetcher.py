"""Fetches URLs for clients, with limits on redirects, size and time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import httpcore
import httpx

from penstock.base.data_url import SCHEME, decode_data_url
from penstock.base.errors import Overloaded
from penstock.fetch.addresses import AllowList
from penstock.fetch.connecting import (
    CheckedBackend,
    ForbiddenAddress,
    Resolve,
    SystemResolver,
)
from penstock.fetch.errors import UrlForbidden, UrlTooLarge, UrlUnreachable

REDIRECTS: Final = (301, 302, 303, 307, 308)
HEADERS: Final = (
    (b"accept", b"*/*"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"penstock"),
)
MAX_SHOWN_CHARS: Final = 120
MAX_PORT: Final = 65535
CONNECT_TIMEOUT_S: Final = 10.0


def public_certificates() -> ssl.SSLContext:
    """Return a TLS context that trusts the public certificate authorities. Environment variables do
    not change it."""
    return httpx.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a Fetcher.

    `max_bytes`: the size of the content of one URL.
    `max_buffered_bytes`: the total size of all contents that are being received.
    `max_redirects`: the number of redirects that one fetch follows.
    `timeout_s`: the time of one fetch, with all its redirects.
    """

    max_bytes: int = 64 * 1024 * 1024
    max_buffered_bytes: int = 512 * 1024 * 1024
    max_redirects: int = 3
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The content of a URL.

    `mime_type`: the content type that the server sent, without parameters; None: it sent none.
    `name`: the last segment of the URL's path; None: the segment is empty.
    """

    data: bytes
    mime_type: str | None
    name: str | None


class Fetcher:
    """Fetches URLs for clients. Keeps no connection, resolved name or cookie between fetches.

    `allow`: the addresses that may be connected to.
    `resolve`: resolves host names; None: the system's resolver.
    `tls`: creates the TLS context at the first fetch, because reading the certificates is slow.
    """

    def __init__(
        self,
        allow: AllowList,
        limits: FetchLimits = FetchLimits(),
        resolve: Resolve | None = None,
        tls: Callable[[], ssl.SSLContext] = public_certificates,
    ) -> None:
        self._allow = allow
        self._limits = limits
        self._resolve = resolve or SystemResolver()
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._buffered_bytes = 0

    async def fetch(self, url: str, *, field: str) -> Fetched:
        """Return the content of an http:, https: or data: URL.

        `field`: the request field that contains the URL, for error messages.

        Raises UrlForbidden, UrlUnreachable, UrlTooLarge, and Overloaded if the contents that are
        being received exceed `max_buffered_bytes`.
        """
        if url[: len(SCHEME)].lower() == SCHEME:
            return await asyncio.to_thread(self._decode_data_url, url, field)  # may be large
        try:
            return await asyncio.wait_for(self._follow(url, field), self._limits.timeout_s)
        except asyncio.TimeoutError:
            seconds = self._limits.timeout_s
            raise UrlUnreachable(
                f"{shorten_url(url)} could not be fetched within {seconds:g} s", field=field
            ) from None
        except ForbiddenAddress:
            raise UrlForbidden(
                f"{shorten_url(url)} is not fetched: the address of its host is not public",
                field=field,
            ) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError):
            raise UrlUnreachable(f"{shorten_url(url)} could not be fetched", field=field) from None

    def _decode_data_url(self, url: str, field: str) -> Fetched:
        try:
            data, mime_type = decode_data_url(url)
        except ValueError:
            raise UrlForbidden("the data: URL is not valid", field=field) from None
        if len(data) > self._limits.max_bytes:
            raise self._too_large(field)
        return Fetched(data, mime_type, None)

    async def _follow(self, given: str, field: str) -> Fetched:
        """Fetch a URL and follow its redirects. Each redirect is parsed, resolved and checked like
        the URL."""
        url = _parse_url(given, field)
        backend = CheckedBackend(self._resolve, self._allow)
        for _ in range(self._limits.max_redirects + 1):
            async with httpcore.AsyncConnectionPool(
                ssl_context=self._context(), max_connections=1, network_backend=backend
            ) as pool:
                answer = await self._get(pool, url, field)
            if isinstance(answer, Fetched):
                return answer
            url = _parse_url(answer, field, url)
        raise UrlUnreachable(
            f"{shorten_url(given)} redirects more than {self._limits.max_redirects} times",
            field=field,
        )

    async def _get(
        self, pool: httpcore.AsyncConnectionPool, url: httpx.URL, field: str
    ) -> Fetched | str:
        """Send one GET request. Return the content, or the Location header of a redirect."""
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        headers = [(b"host", url.netloc), *HEADERS]
        timeouts = {"connect": CONNECT_TIMEOUT_S, "read": None, "write": None, "pool": None}
        async with pool.stream(
            "GET", target, headers=headers, extensions={"timeout": timeouts}
        ) as answer:
            fields = {name.lower(): value for name, value in answer.headers}
            if answer.status in REDIRECTS and b"location" in fields:
                return fields[b"location"].decode("latin-1")
            if answer.status != 200:
                raise UrlUnreachable(f"the URL answered with status {answer.status}", field=field)
            data = await self._read(answer, fields, field)
        kind = fields.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        return Fetched(data, kind or None, unquote(url.path).rpartition("/")[2] or None)

    async def _read(
        self, answer: httpcore.Response, fields: dict[bytes, bytes], field: str
    ) -> bytes:
        if fields.get(b"content-encoding", b"identity").lower() != b"identity":
            raise UrlUnreachable(
                "the URL answered with compressed content, although none was accepted",
                field=field,
            )
        declared = fields.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > self._limits.max_bytes:
            raise self._too_large(field)
        chunks: list[bytes] = []
        size = 0
        try:
            async with aclosing(answer.aiter_stream()) as stream:  # type: ignore[type-var]
                async for chunk in stream:
                    size += len(chunk)
                    self._buffered_bytes += len(chunk)
                    self._check_size(size, field)
                    chunks.append(chunk)
            return b"".join(chunks)
        finally:
            self._buffered_bytes -= size

    def _check_size(self, size: int, field: str) -> None:
        if size > self._limits.max_bytes:
            raise self._too_large(field)
        if self._buffered_bytes > self._limits.max_buffered_bytes:
            raise Overloaded("too many large files are being fetched", field=field)

    def _too_large(self, field: str) -> UrlTooLarge:
        return UrlTooLarge(
            f"the content of the URL is larger than {self._limits.max_bytes} bytes", field=field
        )

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._make_tls()
        return self._tls


def shorten_url(url: str) -> str:
    """Return a URL for an error message, truncated if it is long."""
    return url if len(url) <= MAX_SHOWN_CHARS else url[:MAX_SHOWN_CHARS] + "..."


def _parse_url(text: str, field: str, base: httpx.URL | None = None) -> httpx.URL:
    """Parse an absolute http or https URL without credentials. `text` may be relative to `base`.
    Raises UrlForbidden."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host = url.host  # raises if an international name is not valid
    except (httpx.InvalidURL, ValueError, TypeError):
        raise UrlForbidden("the URL is not valid", field=field) from None
    if url.scheme not in ("http", "https") or not host:
        raise UrlForbidden("only http: and https: URLs are fetched", field=field)
    if url.port is not None and not 1 <= url.port <= MAX_PORT:
        raise UrlForbidden("the URL is not valid", field=field)
    if url.userinfo:
        raise UrlForbidden("URLs with a user name are not fetched", field=field)
    return url
