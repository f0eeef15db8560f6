"""`penstock mcp`: shows the MCP servers that provide tools."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.help_text import SETTINGS, PlainCommand, PlainGroup
from penstock.cli.output import JSON_OPTION, print_json, print_table
from penstock.config import SettingsError

if TYPE_CHECKING:
    from penstock.agent.mcp import McpServers


def list_servers(
    mcp_config: Annotated[
        Path | None,
        typer.Option(
            "--mcp-config", envvar="MCP_CONFIG_PATH", help="JSON file with the MCP servers."
        ),
    ] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Connect to the MCP servers and list their tools. Exits with status 1 if a server fails."""
    import asyncio

    from penstock.agent.mcp import McpServers, read_mcp_config

    if mcp_config is None:
        raise SettingsError("--mcp-config: name the JSON file with the MCP servers")
    # Failures are in the result. The command does not try again.
    logging.getLogger("penstock.agent.mcp").setLevel(logging.ERROR)
    config = read_mcp_config(mcp_config)
    patience_s = max((server.timeout_s for server in config.servers), default=0.0) + 1

    async def connect_and_print() -> bool:
        servers = McpServers(config)
        try:
            await servers.start(patience_s)
            if as_json:
                _print_json(servers)
            else:
                _print_table(servers)
            return all(server.connected for server in servers.status())
        finally:
            await servers.close()

    if not asyncio.run(connect_and_print()):
        raise typer.Exit(1)


def _print_json(servers: McpServers) -> None:
    import msgspec

    listed = [
        {**msgspec.to_builtins(server), "tools": servers.tool_names(server.name)}
        for server in servers.status()
    ]
    print_json({"servers": listed})


def _print_table(servers: McpServers) -> None:
    rows = []
    for server in servers.status():
        if server.connected:
            rows.append((server.name, "ok", ", ".join(servers.tool_names(server.name))))
        else:
            rows.append((server.name, "error", server.last_error or "no answer"))
    print_table(("Server", "State", "Tools"), rows)


app = typer.Typer(
    cls=PlainGroup,
    help="Show the MCP servers that provide tools.",
    rich_markup_mode=None,
    context_settings=SETTINGS,
    no_args_is_help=True,
)
app.command("list", cls=PlainCommand, epilog="penstock mcp list --mcp-config mcp.json")(
    list_servers
)


@app.callback()
def _group() -> None:
    """Show the MCP servers that provide tools."""
