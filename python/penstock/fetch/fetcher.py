"""One GET of a client's URL, bounded in redirects, size and time."""

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
    """Trusts the usual authorities, whatever the environment says."""
    return httpx.create_ssl_context(trust_env=False)


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`timeout_s`: of a whole fetch with its redirects. `max_held_bytes`: of all the bodies that
    are being received at once."""

    max_bytes: int = 64 * 1024 * 1024
    max_held_bytes: int = 512 * 1024 * 1024
    max_redirects: int = 3
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """`name`: the last step of the URL's path, None where it is empty."""

    data: bytes
    mime_type: str | None
    name: str | None


class Fetcher:
    """Fetches for clients. Nothing is kept between two fetches: no connection, name or cookie.

    `resolve`: how names become addresses; None: as this machine does. `tls`: makes the context of
    https, with the first fetch: reading the certificates takes its time.
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
        self._held_bytes = 0

    async def fetch(self, url: str, *, field: str) -> Fetched:
        """What an http(s) or data: URL holds. `field`: the request's field that has it, for errors.
        Raises UrlForbidden, UrlUnreachable, UrlTooLarge, and Overloaded where too much is being
        received."""
        if url[: len(SCHEME)].lower() == SCHEME:
            return await asyncio.to_thread(self._decoded, url, field)  # it may be long
        try:
            return await asyncio.wait_for(self._follow(url, field), self._limits.timeout_s)
        except asyncio.TimeoutError:
            seconds = self._limits.timeout_s
            raise UrlUnreachable(
                f"{shortened_url(url)} could not be fetched within {seconds:g} s", field=field
            ) from None
        except ForbiddenAddress:
            raise UrlForbidden(
                f"{shortened_url(url)} is not fetched: the address of its host is not public",
                field=field,
            ) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError):
            raise UrlUnreachable(
                f"{shortened_url(url)} could not be fetched", field=field
            ) from None

    def _decoded(self, url: str, field: str) -> Fetched:
        try:
            data, mime_type = decode_data_url(url)
        except ValueError:
            raise UrlForbidden("not a valid data: URL", field=field) from None
        if len(data) > self._limits.max_bytes:
            raise self._too_large(field)
        return Fetched(data, mime_type, None)

    async def _follow(self, given: str, field: str) -> Fetched:
        """Every step is parsed, resolved and checked anew."""
        url = _parsed(given, field)
        backend = CheckedBackend(self._resolve, self._allow)
        for _ in range(self._limits.max_redirects + 1):
            async with httpcore.AsyncConnectionPool(
                ssl_context=self._context(), max_connections=1, network_backend=backend
            ) as pool:
                answer = await self._get(pool, url, field)
            if isinstance(answer, Fetched):
                return answer
            url = _parsed(answer, field, url)
        most = self._limits.max_redirects
        raise UrlUnreachable(
            f"{shortened_url(given)} redirects more than {most} times", field=field
        )

    async def _get(
        self, pool: httpcore.AsyncConnectionPool, url: httpx.URL, field: str
    ) -> Fetched | str:
        """The content, or where it is said to be."""
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
                "the URL answered with compressed content, which was not asked for",
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
                    self._held_bytes += len(chunk)
                    self._check_size(size, field)
                    chunks.append(chunk)
            return b"".join(chunks)
        finally:
            self._held_bytes -= size

    def _check_size(self, size: int, field: str) -> None:
        if size > self._limits.max_bytes:
            raise self._too_large(field)
        if self._held_bytes > self._limits.max_held_bytes:
            raise Overloaded("too many large files are being fetched", field=field)

    def _too_large(self, field: str) -> UrlTooLarge:
        most = self._limits.max_bytes
        return UrlTooLarge(f"the URL holds more than {most} bytes", field=field)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = self._make_tls()
        return self._tls


def shortened_url(url: str) -> str:
    """A client's URL in a message: cut if it is long."""
    return url if len(url) <= MAX_SHOWN_CHARS else url[:MAX_SHOWN_CHARS] + "..."


def _parsed(text: str, field: str, base: httpx.URL | None = None) -> httpx.URL:
    """An absolute http(s) URL without credentials. Raises UrlForbidden."""
    try:
        url = httpx.URL(text) if base is None else base.join(text)
        host = url.host  # decoded here, where it may be an international name that is none
    except (httpx.InvalidURL, ValueError, TypeError):
        raise UrlForbidden("not a valid URL", field=field) from None
    if url.scheme not in ("http", "https") or not host:
        raise UrlForbidden("only http: and https: URLs are fetched", field=field)
    if url.port is not None and not 1 <= url.port <= MAX_PORT:
        raise UrlForbidden("not a valid URL", field=field)
    if url.userinfo:
        raise UrlForbidden("a URL with a user name is not fetched", field=field)
    return url
