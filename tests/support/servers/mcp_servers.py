"""MCP servers of the official package, as processes and over HTTP, and our clients for them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec

from penstock.agent.mcp import McpServers, parse_mcp_config
from penstock.agent.mcp.connection import BackOff
from penstock.agent.tools.mcp import McpTool
from penstock.agent.tools.tool import CallContext, ToolOutcome
from penstock.dialog import GenerateRequest, ToolCall

PROGRAM = Path(__file__).with_name("mcp_server_program.py")
FAST = BackOff(first_s=0.01, last_s=0.05)


def process_entry(kind: str, **fields: Any) -> dict[str, Any]:
    """Return the entry of a server that runs as a process, in Claude Desktop's form."""
    return {"command": sys.executable, "args": [str(PROGRAM), kind], **fields}


@asynccontextmanager
async def connecting(
    entries: dict[str, dict[str, Any]], *, timeout_s: float = 20.0, **options: Any
) -> AsyncIterator[McpServers]:
    """Connect to the servers of `entries`, in Claude Desktop's form, until the block ends."""
    file = {"mcpServers": entries, "tool_timeout_secs": timeout_s, **options}
    servers = McpServers(parse_mcp_config(msgspec.json.encode(file)), FAST)
    try:
        await servers.start(timeout_s + 20)
        yield servers
    finally:
        await servers.close()


def tool_named(servers: McpServers, name: str) -> McpTool:
    return next(tool for tool in servers.tools() if tool.info.name == name)


async def call(servers: McpServers, name: str, **arguments: Any) -> ToolOutcome:
    """Call a tool as the agent loop does."""
    tool = tool_named(servers, name)
    text = msgspec.json.encode(arguments).decode()
    return await tool.run(tool.decode(text), context_of(name, text))


def context_of(name: str, arguments: str) -> CallContext:
    return CallContext("s", "c", 0, ToolCall("call_1", name, arguments), GenerateRequest(model="m"))


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop until the condition holds; the test's own timeout limits it."""
    while not condition():
        await asyncio.sleep(0.005)


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie, which waits for its parent, does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@asynccontextmanager
async def serving_app(
    app: Any, port: int = 0, lifespan: Literal["on", "off"] = "on"
) -> AsyncIterator[int]:
    """Serve an ASGI app on loopback until the block ends; yield the port."""
    import uvicorn

    class QuietServer(uvicorn.Server):
        """A server that leaves the signals to the tests."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app, log_level="critical", timeout_graceful_shutdown=0, lifespan=lifespan
    )
    server = QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        await until(lambda: server.started or task.done())
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        bound.close()


@asynccontextmanager
async def serving_bytes(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Serve HTTP on loopback: each request is read and then answered by `answer`, byte by byte.
    Yields the URL."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await answer(writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
