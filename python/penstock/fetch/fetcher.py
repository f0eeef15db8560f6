"""Fetches URLs for clients, with limits on redirects, size and time."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import httpcore
import httpx

from penstock.base.data_url import SCHEME, decode_data_url
from penstock.base.errors import Overloaded
from penstock.base.time_limit import within
from penstock.fetch.addresses import AllowList
from penstock.fetch.connecting import (
    CheckedBackend,
    ForbiddenAddress,
    Resolve,
    SystemResolver,
)
from penstock.fetch.decoding import BadEncoding, Decoder, Encoding, Gzip, Identity
from penstock.fetch.errors import UrlForbidden, UrlTooLarge, UrlUnreachable

REDIRECTS: Final = (301, 302, 303, 307, 308)
HEADERS: Final = (
    (b"accept", b"*/*"),
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
    `charset`: the character encoding that the server named, in lower case; None: it named none.
    """

    data: bytes
    mime_type: str | None
    name: str | None
    charset: str | None = None


def any_host(host: str) -> bool:
    """Accept every host."""
    return True


class Fetcher:
    """Fetches URLs for clients. Keeps no connection, resolved name or cookie between fetches.

    `allow`: the addresses that may be connected to.
    `resolve`: resolves host names; None: the system's resolver.
    `tls`: creates the TLS context at the first fetch, because reading the certificates is slow.
    `encodings`: the content encodings that servers may use. The limits hold for received and for
    decoded bytes.
    """

    def __init__(
        self,
        allow: AllowList,
        limits: FetchLimits = FetchLimits(),
        resolve: Resolve | None = None,
        tls: Callable[[], ssl.SSLContext] = public_certificates,
        encodings: Sequence[Encoding] = (),
    ) -> None:
        self._allow = allow
        self._limits = limits
        self._resolve = resolve or SystemResolver()
        self._make_tls = tls
        self._tls: ssl.SSLContext | None = None
        self._buffered_bytes = 0
        self._encodings = tuple(encodings)
        accepted = ", ".join(encodings) or "identity"
        self._headers = (*HEADERS, (b"accept-encoding", accepted.encode()))

    async def fetch(
        self, url: str, *, field: str, allows_host: Callable[[str], bool] = any_host
    ) -> Fetched:
        """Return the content of an http:, https: or data: URL.

        `field`: the request field that contains the URL, for error messages.
        `allows_host`: tells whether to fetch from a host, also after redirects. It receives the
        name or address in lower case; an international name in its ASCII form.

        Raises UrlForbidden, UrlUnreachable, UrlTooLarge, and Overloaded if the contents that are
        being received exceed `max_buffered_bytes`.
        """
        if url[: len(SCHEME)].lower() == SCHEME:
            return await asyncio.to_thread(self._decode_data_url, url, field)  # may be large
        try:
            return await within(self._limits.timeout_s, self._follow(url, field, allows_host))
        except asyncio.TimeoutError:
            seconds = self._limits.timeout_s
            raise UrlUnreachable(
                f"{shorten_url(url)} could not be fetched within {seconds:g} s", field=field
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

    async def _follow(self, given: str, field: str, allows_host: Callable[[str], bool]) -> Fetched:
        """Fetch a URL and follow its redirects. Each redirect is parsed, resolved and checked like
        the URL."""
        url = _parse_url(given, field)
        backend = CheckedBackend(self._resolve, self._allow)
        for redirects in range(self._limits.max_redirects + 1):
            if not allows_host(url.raw_host.decode("ascii")):
                raise UrlForbidden("the host of the URL is not allowed", field=field)
            async with httpcore.AsyncConnectionPool(
                ssl_context=self._context(), max_connections=1, network_backend=backend
            ) as pool:
                try:
                    answer = await self._get(pool, url, field)
                except ForbiddenAddress:
                    host = "the host to which it redirects" if redirects else "its host"
                    raise UrlForbidden(
                        f"{shorten_url(given)} is not fetched: the address of {host} is not public,"
                        " and --fetch-allow does not list it",
                        field=field,
                    ) from None
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
        headers = [(b"host", url.netloc), *self._headers]
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
        kind, _, parameters = fields.get(b"content-type", b"").decode("latin-1").partition(";")
        name = unquote(url.path).rpartition("/")[2]
        return Fetched(data, kind.strip().lower() or None, name or None, _charset_of(parameters))

    async def _read(
        self, answer: httpcore.Response, fields: dict[bytes, bytes], field: str
    ) -> bytes:
        decoder = self._decoder_for(fields, field)
        declared = fields.get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > self._limits.max_bytes:
            raise self._too_large(field)
        chunks: list[bytes] = []
        received = size = 0
        try:
            async with aclosing(answer.aiter_stream()) as stream:  # type: ignore[type-var]
                async for data in stream:
                    received += len(data)
                    self._check_size(received, field)
                    for chunk in decoder.pieces(data):
                        size += len(chunk)
                        self._buffered_bytes += len(chunk)
                        self._check_size(size, field)
                        chunks.append(chunk)
            decoder.finish()
            return b"".join(chunks)
        except BadEncoding:
            raise UrlUnreachable(
                "the URL answered with content that cannot be decompressed", field=field
            ) from None
        finally:
            self._buffered_bytes -= size

    def _decoder_for(self, fields: dict[bytes, bytes], field: str) -> Decoder:
        encoding = fields.get(b"content-encoding", b"identity").strip().lower()
        if encoding == b"identity":
            return Identity()
        if encoding in (b"gzip", b"x-gzip") and "gzip" in self._encodings:
            return Gzip()
        raise UrlUnreachable(
            "the URL answered with compressed content of a kind that was not accepted",
            field=field,
        )

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


def _charset_of(parameters: str) -> str | None:
    """Return the charset among the parameters of a content type."""
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "charset":
            return value.strip().strip("\"'").lower() or None
    return None


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
