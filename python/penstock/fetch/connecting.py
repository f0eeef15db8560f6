"""Opens connections to checked addresses only: each host name is resolved once, all its addresses
are checked, and the connection goes to one of them.

The Host header and the TLS server name still come from the URL.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpcore

from penstock.fetch.addresses import AllowList

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Function that returns the addresses of (host, port), in the order in which to try them. Raises
OSError."""

RESOLVERS: Final = 16
"""Maximum number of concurrent lookups. A name whose DNS servers do not answer occupies a thread
for many seconds, even after its fetch has timed out."""


class ForbiddenAddress(Exception):
    """A host name has an address that the server must not connect to."""


class SystemResolver:
    """Resolves names with the system's resolver in separate threads, so that slow lookups of names
    that clients chose block nothing else."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, "penstock-resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Implement `Resolve`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _addresses_of, host, port)


def _addresses_of(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens the connections of one fetch. A host name is forbidden if any of its addresses is
    forbidden, because the order of the addresses may differ between resolvers."""

    def __init__(self, resolve: Resolve, allow: AllowList) -> None:
        self._resolve = resolve
        self._allow = allow
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address that answers. Raises ForbiddenAddress, and
        httpcore.ConnectError if no address answers."""
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(error) from error
        if not all(map(self._allow.allows, addresses)):
            raise ForbiddenAddress
        last_error: Exception = httpcore.ConnectError("the name has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last_error = error
        raise last_error

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddress

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
