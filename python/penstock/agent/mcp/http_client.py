"""The HTTP client for MCP servers: limits the size of answers, and remembers refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from penstock.agent.mcp.limits import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    import httpx2

SPARE_S: Final = 5.0
"""Seconds added to the time-out of calls for the HTTP request, so that an abandoned one ends."""

GOODBYE_S: Final = 1.0
"""Seconds for the request that ends a session."""


class HttpFailures:
    """The last refusal of a server. `text`: such as "HTTP 401", "" if there was none."""

    def __init__(self) -> None:
        self.text = ""


def bounded_client(
    headers: dict[str, str], timeout_s: float, failures: HttpFailures
) -> httpx2.AsyncClient:
    """Return a client whose answers are at most MAX_MESSAGE_BYTES long, except event streams, and
    whose requests end soon after `timeout_s` seconds, except event streams that are open for the
    server's own messages."""
    import httpx2

    class BoundedStream(httpx2.AsyncByteStream):
        def __init__(self, stream: httpx2.AsyncByteStream) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > MAX_MESSAGE_BYTES:
                    limit = MAX_MESSAGE_BYTES >> 20
                    raise httpx2.StreamError(f"an answer of more than {limit} MiB")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    class BoundedTransport(httpx2.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            request.extensions["timeout"] = _timeouts(request.method, timeout_s)
            try:
                response = await super().handle_async_request(request)
            except httpx2.ReadTimeout:
                # As an exception it would end the connection, and all other calls with it.
                return httpx2.Response(504, request=request)
            if response.status_code >= 400:
                failures.text = f"HTTP {response.status_code}"
            if response.headers.get("content-encoding", "identity") != "identity":
                await response.aclose()
                failures.text = "a compressed answer, which was not asked for"
                return httpx2.Response(502, request=request)
            if "text/event-stream" not in response.headers.get("content-type", ""):
                assert isinstance(response.stream, httpx2.AsyncByteStream)
                response.stream = BoundedStream(response.stream)
            return response

    return httpx2.AsyncClient(
        headers={**headers, "accept-encoding": "identity"},
        transport=BoundedTransport(trust_env=False),
        trust_env=False,
    )


def _timeouts(method: str, timeout_s: float) -> dict[str, float | None]:
    """Return the time-outs of a request, in seconds. A GET request opens an event stream."""
    if method == "DELETE":
        return dict.fromkeys(("connect", "read", "write", "pool"), GOODBYE_S)
    read_s = None if method == "GET" else timeout_s + SPARE_S
    return {"connect": timeout_s, "read": read_s, "write": timeout_s, "pool": timeout_s}
