"""Functions of requests that the operator's dispatch URL executes.

A call is one POST of `{"name": ..., "arguments": {...}}`. With a secret, it is signed: the header
`x-penstock-signature` is `v1=` and the hexadecimal HMAC-SHA256 of the header `x-penstock-timestamp`
(Unix seconds), a full stop and the body.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import __version__
from penstock.agent.mcp.results import MAX_RESULT_BYTES, shortened
from penstock.agent.tools.json_arguments import JsonArguments, decode_json_arguments
from penstock.agent.tools.tool import CallContext, ToolOutcome
from penstock.config import AgentSettings
from penstock.dialog import CustomActivity, FunctionTool, ServerTool

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

MAX_RETRIES: Final = 2
RETRIED_STATUSES: Final = frozenset({502, 503, 504})
MAX_RETRY_AFTER_S: Final = 5.0
MAX_BODY_BYTES: Final = 8 * 1024 * 1024


class DispatchFailed(Exception):
    """A call got no usable answer. The message is for the model."""


class DispatchTools:
    """Makes a tool of each function of a request, executed by `settings.tool_dispatch_url`."""

    def __init__(self, settings: AgentSettings) -> None:
        assert settings.tool_dispatch_url is not None
        self._url = settings.tool_dispatch_url
        self._secret = settings.tool_dispatch_secret
        self._timeout_s = settings.tool_dispatch_timeout
        self._client: httpx.AsyncClient | None = None

    def tools(self, functions: Sequence[FunctionTool]) -> tuple[DispatchTool, ...]:
        """Return a tool for each function."""
        return tuple(DispatchTool(function, self) for function in functions)

    async def close(self) -> None:
        """Close the connections. Running calls fail."""
        if self._client is not None:
            await self._client.aclose()

    async def execute(self, name: str, arguments: dict[str, Any], call_id: str) -> str:
        """Return the result of a call. All attempts have the same id, so that the receiver can
        execute it once. Raises DispatchFailed."""
        body = msgspec.json.encode({"name": name, "arguments": arguments})
        try:
            return await asyncio.wait_for(self._attempts(body, call_id), self._timeout_s)
        except asyncio.TimeoutError:
            raise DispatchFailed(f"no answer within {self._timeout_s} s") from None

    async def _attempts(self, body: bytes, call_id: str) -> str:
        import httpx

        for attempt in range(MAX_RETRIES + 1):
            last = attempt == MAX_RETRIES
            pause_s = 0.2 * 2**attempt * random.uniform(0.5, 1.0)
            try:
                async with self._http().stream(
                    "POST", self._url, content=body, headers=self._headers(body, call_id)
                ) as response:
                    if response.status_code in RETRIED_STATUSES and not last:
                        pause_s = _retry_after_s(response.headers.get("retry-after"), pause_s)
                    else:
                        return await _result(response)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if last:
                    raise DispatchFailed(f"cannot connect: {error}") from None
            except httpx.HTTPError as error:
                raise DispatchFailed(str(error) or type(error).__name__) from None
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _headers(self, body: bytes, call_id: str) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": f"penstock/{__version__}",
            "x-penstock-call-id": _header_value(call_id),
        }
        if self._secret:
            timestamp = str(int(time.time()))
            headers["x-penstock-timestamp"] = timestamp
            headers["x-penstock-signature"] = signature(self._secret, timestamp, body)
        return headers

    def _http(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            # No connection is kept: a reused one that the receiver has just closed is an error that
            # cannot be told from a call that was executed.
            self._client = httpx.AsyncClient(
                timeout=self._timeout_s,
                trust_env=False,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
            )
        return self._client


class DispatchTool:
    """A client's function, executed by the dispatch URL."""

    reads_only = False

    def __init__(self, function: FunctionTool, dispatch: DispatchTools) -> None:
        self.info = ServerTool(function.name, "external", "external", function.name)
        self.function = function
        self._dispatch = dispatch

    def decode(self, arguments: str) -> JsonArguments:
        return decode_json_arguments(arguments)

    def describe(self, arguments: JsonArguments) -> CustomActivity:
        return CustomActivity(arguments=arguments.text)

    async def run(self, arguments: JsonArguments, context: CallContext) -> ToolOutcome:
        name = self.info.name
        try:
            result = await self._dispatch.execute(name, arguments.values, context.call.id)
        except DispatchFailed as error:
            log.warning("the dispatch URL failed to execute %s: %s", name, error)
            failure = {"error": str(error), "tool": name, "status": "failed"}
            content = msgspec.json.encode(failure).decode()
            activity = CustomActivity(arguments=arguments.text, status="error", content=content)
            return ToolOutcome(activity, failure, is_error=True)
        activity = CustomActivity(arguments=arguments.text, status="success", content=result)
        return ToolOutcome(activity, result)


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of `x-penstock-signature`."""
    signed = timestamp.encode() + b"." + body
    return f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


async def _result(response: httpx.Response) -> str:
    """Return the result in an answer: the string `content` of a JSON object, else the whole body.
    Raises DispatchFailed."""
    if not response.is_success:
        raise DispatchFailed(f"HTTP {response.status_code}")
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise DispatchFailed(f"the answer is larger than {MAX_BODY_BYTES >> 20} MiB")
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        decoded = None
    content = decoded.get("content") if isinstance(decoded, dict) else None
    text = content if isinstance(content, str) else body.decode(errors="replace")
    return shortened(text, MAX_RESULT_BYTES)


def _retry_after_s(header: str | None, otherwise_s: float) -> float:
    """Return the seconds that the receiver asks for, at most MAX_RETRY_AFTER_S. A date is
    ignored."""
    if header is None or not header.strip().isdecimal():
        return otherwise_s
    return min(float(header), MAX_RETRY_AFTER_S)


def _header_value(text: str) -> str:
    """Return `text` as printable ASCII: the call id may come from the client."""
    return "".join(c if " " < c < "\x7f" else "_" for c in text[:256])
