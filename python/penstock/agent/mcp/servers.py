"""The MCP servers of a configuration, and their tools."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec

from penstock.agent.mcp.config import McpConfig
from penstock.agent.mcp.connection import BackOff, ServerConnection
from penstock.agent.mcp.names import function_name
from penstock.agent.mcp.package import load_package
from penstock.agent.tools.mcp import McpTool


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an MCP server.

    - `tools`: number of its tools, 0 while it is not connected.
    - `last_error`: why the last attempt to connect, or the last connection, ended; None if none
      did.
    """

    name: str
    connected: bool
    tools: int
    last_error: str | None = None


class McpServers:
    """Connects the servers of `config` from `start` to `close`. A server that fails is tried again
    with growing pauses; meanwhile only its own tools are missing."""

    def __init__(self, config: McpConfig, back_off: BackOff = BackOff()) -> None:  # noqa: B008
        self._config = config
        self._back_off = back_off
        self._connections: tuple[ServerConnection, ...] = ()
        self._tools: tuple[McpTool, ...] | None = None

    async def start(self, patience_s: float = 5.0) -> None:
        """Connect all servers side by side. Returns once each has been tried, or after `patience_s`
        seconds; slower ones go on in the background. Raises SettingsError if the package `mcp` is
        not installed."""
        if not self._config.servers:
            return
        await asyncio.to_thread(load_package, "--mcp-config")
        self._connections = tuple(
            ServerConnection(
                server, self._config.max_concurrent_calls, self._forget_tools, self._back_off
            )
            for server in self._config.servers
        )
        for connection in self._connections:
            connection.start()
        tries = [asyncio.ensure_future(c.tried()) for c in self._connections]
        try:
            await asyncio.wait(tries, timeout=patience_s)
        finally:
            for task in tries:
                task.cancel()

    async def close(self) -> None:
        """Disconnect all servers and end their processes. Running calls fail."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def tools(self) -> tuple[McpTool, ...]:
        """Return the tools that the connected servers list now. The order is that of the
        configuration; names are unique."""
        if not self._config.auto_register_tools:
            return ()
        if self._tools is None:
            self._tools = self._named_tools()
        return self._tools

    def status(self) -> tuple[ServerStatus, ...]:
        """Return the state of each server, in the order of the configuration."""
        return tuple(
            ServerStatus(
                name=connection.server.name,
                connected=connection.connected,
                tools=len(connection.tools),
                last_error=connection.last_error,
            )
            for connection in self._connections
        )

    def tool_names(self, server: str) -> tuple[str, ...]:
        """Return the names of a server's tools, as the server lists them."""
        return tuple(
            tool.name for c in self._connections if c.server.name == server for tool in c.tools
        )

    def _named_tools(self) -> tuple[McpTool, ...]:
        tools: dict[str, McpTool] = {}
        for connection in self._connections:
            server = connection.server
            for tool in connection.tools:
                name = function_name(server.prefix, tool.name, tools)
                call = partial(connection.call, tool.name)
                tools[name] = McpTool(name, server.name, tool, call)
        return tuple(tools.values())

    def _forget_tools(self) -> None:
        self._tools = None
