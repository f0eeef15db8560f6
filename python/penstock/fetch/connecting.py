"""Connections to checked addresses: a name is resolved once, and what was checked is connected to.

Host header and TLS server name stay those of the URL, as they are made from it and not from the
address.
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
"""Host and port -> its addresses, in the order in which they are to be tried. Raises OSError."""


RESOLVERS: Final = 16
"""Names that are looked up at once: one whose servers are silent takes a thread for many seconds,
also when nobody waits for it any more."""


class ForbiddenAddress(Exception):
    """A name has an address that nothing is fetched from."""


class SystemResolver:
    """Resolves names as this machine does, in threads of its own: nothing else waits for those
    whose names clients choose."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, "penstock-resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """See Resolve."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _addresses_of, host, port)


def _addresses_of(host: str, port: int) -> Sequence[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections for one fetch. A name with one forbidden address is forbidden: which one
    another resolver would give first is not ours to guess."""

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
        """Raises ForbiddenAddress, and httpcore.ConnectError where no address answers."""
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(error) from error
        if not all(map(self._allow.allows, addresses)):
            raise ForbiddenAddress
        failure: Exception = httpcore.ConnectError("the name has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddress

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
