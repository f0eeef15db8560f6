"""The connection to one MCP server: kept up, listed, and called.

A server may be dead, die, answer slowly, wrongly or never. Its tools are then gone until a later
attempt to connect succeeds; nothing else is affected.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.agent.mcp.config import ServerConfig
from penstock.agent.mcp.limits import MAX_TOOL_PAGES, MAX_TOOLS, ServerFault
from penstock.agent.mcp.results import CallResult, call_result
from penstock.agent.mcp.transports import Wire, opened

if TYPE_CHECKING:
    import mcp_types
    from mcp import Client

T = TypeVar("T")

log = logging.getLogger(__name__)

PROBE_S: Final = 60.0
"""Seconds between two checks of an idle server."""

CLOSE_S: Final = 10.0
"""Seconds that the end of a connection may take, a child process included."""

CANCEL_S: Final = 0.2
"""Seconds that a cancelled call waits until its notice of cancellation is sent."""

_REASON_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class BackOff:
    """Seconds before an attempt to connect: the first after a failure, and the maximum. They double
    in between, and vary by half so that servers are not tried in step."""

    first_s: float = 1.0
    last_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row."""
        delay_s = min(self.first_s * 2.0 ** min(failures - 1, 30), self.last_s)
        return delay_s * random.uniform(0.5, 1.0)


class ServerConnection:
    """Keeps a server connected from `start` to `close`.

    - `tools`: the tools that the server lists, none while it is not connected.
    - `last_error`: why the last attempt or connection ended, None if none did.
    """

    def __init__(
        self,
        server: ServerConfig,
        max_concurrent_calls: int,
        on_change: Callable[[], None],
        back_off: BackOff,
    ) -> None:
        self.server = server
        self.tools: tuple[mcp_types.Tool, ...] = ()
        self.last_error: str | None = None
        self._on_change = on_change
        self._back_off = back_off
        self._limit = max_concurrent_calls
        self._slots = asyncio.Semaphore(max_concurrent_calls)
        self._client: Client | None = None
        self._wire = Wire()
        self._stale = asyncio.Event()
        self._tried = asyncio.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        return self._client is not None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._keep_connected(), name=f"mcp {self.server.name}")

    async def tried(self) -> None:
        """Wait until the first attempt to connect has succeeded or failed."""
        await self._tried.wait()

    async def close(self) -> None:
        """Disconnect. Running calls fail. A child process ends before the method returns."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool. Every failure is a result. If the task is cancelled, the server is notified
        and the method returns at once."""
        try:
            return await self._call(tool, arguments)
        except ServerFault as error:
            return CallResult(str(error), is_error=True)
        except Exception as error:
            return CallResult(reason_of(error), is_error=True)

    @property
    def _ended_message(self) -> str:
        return f"the connection to the server '{self.server.name}' ended during the call"

    async def _call(self, tool: str, arguments: dict[str, Any]) -> CallResult:
        timeout_s = self.server.timeout_s
        try:
            await asyncio.wait_for(self._slots.acquire(), timeout_s)
        except asyncio.TimeoutError:
            raise ServerFault(
                f"the server '{self.server.name}' is busy with {self._limit} other calls"
            ) from None
        try:
            if self._client is None:
                why = f": {self.last_error}" if self.last_error else ""
                raise ServerFault(f"the server '{self.server.name}' is not connected{why}")
            answer = await self._within(
                timeout_s,
                _called(self._client, tool, arguments),
                f"the tool did not answer within {timeout_s:g} s",
            )
        except Exception as error:
            if _connection_is_over(error):
                self._wire.ended.set()
                raise ServerFault(self._ended_message) from None
            raise
        finally:
            self._slots.release()
        return call_result(answer)

    async def _within(self, timeout_s: float, work: Coroutine[Any, Any, T], message: str) -> T:
        """Return the result of a request. If it takes too long or this task is cancelled, the
        request is cancelled, which notifies the server. Raises ServerFault with `message`."""
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            await _cancelled(task, CANCEL_S)
            raise
        if not done:
            await _cancelled(task, CANCEL_S)
            raise ServerFault(message)
        if task.cancelled():
            raise ServerFault(self._ended_message)
        return task.result()

    async def _keep_connected(self) -> None:
        """Connect, again and again, until this task is cancelled."""
        failures, mode = 0, "auto"
        while True:
            connected = asyncio.get_running_loop().create_future()
            started_s = time.monotonic()
            try:
                await self._try(connected, mode)
            finally:
                self._lost()
                self._tried.set()
            if not connected.done():
                mode = "legacy" if mode == "auto" else "auto"
            healthy = connected.done() and time.monotonic() - started_s > self._back_off.last_s
            failures = 1 if healthy else failures + 1
            delay_s = self._back_off.delay_s(failures)
            log.log(
                logging.WARNING if failures == 1 else logging.DEBUG,
                "MCP server %s: %s; next attempt in %.1f s",
                self.server.name, self.last_error, delay_s,
            )  # fmt: skip
            await asyncio.sleep(delay_s)

    async def _try(self, connected: asyncio.Future[None], mode: str) -> None:
        """Connect, and wait for the end of the connection. Sets `last_error`."""
        self._wire = Wire()
        attempt = asyncio.create_task(self._connection(connected, mode))
        try:
            await asyncio.wait(
                {attempt, connected},
                timeout=self.server.timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if connected.done():
                await asyncio.wait({attempt})
        finally:
            done = attempt.done()
            await _cancelled(attempt, CLOSE_S)
        if not done:
            reason = f"no answer within {self.server.timeout_s:g} s"
        elif attempt.cancelled() or (error := attempt.exception()) is None:
            reason = "the connection ended"
        else:
            reason = reason_of(error)
        fault = self._wire.fault
        self.last_error = f"{reason} ({fault})" if fault and fault not in reason else reason

    async def _connection(self, connected: asyncio.Future[None], mode: str) -> None:
        """Connect once, and stay until the connection ends. Raises the error that ended it."""
        async with opened(self.server, self._wire, self._on_message, mode) as client:
            tools = await _listed(client)
            self._client = client
            self._set_tools(tools)
            self._tried.set()
            connected.set_result(None)
            log.info("MCP server %s: connected, %d tools", self.server.name, len(tools))
            listening = asyncio.create_task(_listen(client))
            try:
                await self._stay(client)
            finally:
                listening.cancel()
                self._lost()

    async def _stay(self, client: Client) -> None:
        """List the tools again after changes, and probe the idle server, until the connection
        ends."""
        while True:
            ended = asyncio.ensure_future(self._wire.ended.wait())
            stale = asyncio.ensure_future(self._stale.wait())
            try:
                await asyncio.wait(
                    {ended, stale}, timeout=PROBE_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                ended.cancel()
                stale.cancel()
            if self._wire.ended.is_set():
                return
            self._stale.clear()
            message = f"did not list its tools within {self.server.timeout_s:g} s"
            self._set_tools(await self._within(self.server.timeout_s, _listed(client), message))

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._stale.set()

    def _set_tools(self, tools: tuple[mcp_types.Tool, ...]) -> None:
        if tools != self.tools:
            self.tools = tools
            self._on_change()

    def _lost(self) -> None:
        self._client = None
        self._set_tools(())
        for call in self._calls:
            call.cancel()


async def _called(client: Client, tool: str, arguments: dict[str, Any]) -> mcp_types.CallToolResult:
    """Call a tool. `Client.call_tool` would also check the result against the server's own schema,
    whose patterns may never end."""
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult

    params = CallToolRequestParams(name=tool, arguments=arguments)
    return await client.session.send_request(CallToolRequest(params=params), CallToolResult)


async def _listed(client: Client) -> tuple[mcp_types.Tool, ...]:
    """Return the tools of a server, all pages of them. Raises ServerFault for an endless list."""
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_TOOL_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            log.warning("an MCP server lists more than %d tools; the rest is ignored", MAX_TOOLS)
            return tuple(tools[:MAX_TOOLS])
        if cursor is None:
            return tuple(tools)
    raise ServerFault(f"its list of tools has more than {MAX_TOOL_PAGES} pages")


async def _listen(client: Client) -> None:
    """Ask a server of the newest version for its notifications of changed tools. Older ones send
    them unasked. Without them, the periodic probe notices changes."""
    from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
    from mcp.shared.exceptions import MCPError

    with suppress(ListenNotSupportedError, SubscriptionLost, MCPError):
        async with client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                pass  # each one reaches `_on_message` too


async def _cancelled(task: asyncio.Task[Any], wait_s: float) -> None:
    """Cancel a task and wait for its end, at most `wait_s` seconds. A cancelled request may go on
    for a moment, to send its notice of cancellation."""
    task.cancel()
    task.add_done_callback(_retrieved)
    await asyncio.wait({task}, timeout=wait_s)


def _retrieved(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _connection_is_over(error: Exception) -> bool:
    """Return whether no more calls can succeed: the transport ended, or the server has forgotten
    the session, for example because it restarted."""
    from mcp_types import CONNECTION_CLOSED

    return getattr(error, "code", None) == CONNECTION_CLOSED or str(error) == "Session terminated"


def reason_of(error: BaseException) -> str:
    """Return the cause of a failed connection or call in one line."""
    while inner := getattr(error, "exceptions", ()):  # a group of errors: its first one
        error = inner[0]
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        text = f"{place}{error.strerror}"
    elif type(error).__name__ == "ValidationError":
        text = f"an answer does not conform to the protocol: {error}"
    else:
        text = str(error) or type(error).__name__
    text = re.sub(r"\s*\[type=.*", "", text, flags=re.DOTALL)  # pydantic quotes its input
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= _REASON_CHARS else f"{text[:_REASON_CHARS]}..."
