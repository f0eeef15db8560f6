"""Opens the connection to an MCP server, whichever its transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.agent.mcp.config import HttpSource, ProcessSource, ServerConfig, SseSource
from penstock.agent.mcp.http_client import HttpFailures, bounded_client
from penstock.agent.mcp.limits import MAX_MESSAGE_BYTES
from penstock.agent.mcp.stdio import ServerProcess, process_streams, started_process

if TYPE_CHECKING:
    import httpx2
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.client.session import MessageHandlerFnT
    from mcp.shared._httpx_utils import McpHttpClientFactory


class Wire:
    """The transport of one connection.

    - `ended`: is set when no more messages can arrive. Over HTTP only a request may notice that.
    """

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.failures = HttpFailures()
        self.process: ServerProcess | None = None

    @property
    def fault(self) -> str:
        """A reason for the end of the connection that the server's messages do not tell, or ""."""
        if self.process is None:
            return self.failures.text
        return self.process.fault or self.process.last_words


@asynccontextmanager
async def opened(
    server: ServerConfig,
    wire: Wire,
    on_message: MessageHandlerFnT,
    mode: str,
) -> AsyncIterator[Client]:
    """Connect to a server and negotiate the protocol's version.

    `on_message`: is called with each notification.
    `mode`: "auto" asks for the newest version first, which a few old servers do not survive.
    """
    from mcp import Client
    from mcp_types import Implementation

    async with AsyncExitStack() as stack:
        streams = await _streams(server, wire, stack)
        client = Client(
            _watched(streams, wire.ended),
            mode=mode,
            cache=None,
            message_handler=on_message,
            client_info=Implementation(name="penstock", version=__version__),
        )
        yield await stack.enter_async_context(client)


async def _streams(
    server: ServerConfig, wire: Wire, stack: AsyncExitStack
) -> AbstractAsyncContextManager[TransportStreams]:
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    match server.source:
        case ProcessSource():
            wire.process = await stack.enter_async_context(started_process(server.source))
            return process_streams(wire.process)
        case HttpSource(url=url):
            headers = _headers(server, server.source)
            client = bounded_client(headers, server.timeout_s, wire.failures)
            await stack.enter_async_context(client)
            return streamable_http_client(
                url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
            )
        case SseSource(url=url):
            headers = _headers(server, server.source)
            return sse_client(url, httpx_client_factory=_factory(headers, server, wire))


def _factory(own_headers: dict[str, str], server: ServerConfig, wire: Wire) -> McpHttpClientFactory:
    """Return the function with which the package makes its client. The package's headers and
    time-outs are not used."""

    def make(
        headers: object = None, timeout: object = None, auth: object = None
    ) -> httpx2.AsyncClient:
        return bounded_client(own_headers, server.timeout_s, wire.failures)

    return make


def _headers(server: ServerConfig, source: HttpSource | SseSource) -> dict[str, str]:
    if server.bearer_token is None:
        return source.headers
    return {**source.headers, "Authorization": f"Bearer {server.bearer_token}"}


@asynccontextmanager
async def _watched(
    transport: AbstractAsyncContextManager[TransportStreams], ended: asyncio.Event
) -> AsyncIterator[TransportStreams]:
    async with transport as (read, write):
        yield _WatchedStream(read, ended), write


class _WatchedStream:
    """A stream of messages that sets `ended` when it ends."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> _WatchedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> _WatchedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._ended.set()
        await self._stream.__aexit__(*error)
