"""MCP servers behind the HTTP API, with a real MCP server as a child process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from penstock.config import AgentSettings
from tests.support.agent_loops import call
from tests.support.servers.agent_server import AgentServing, agent_server
from tests.support.servers.mcp_servers import process_entry

DEADLINE_S = 60.0
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "add"}]}


def settings_of(folder: Path, **entries: dict[str, Any]) -> AgentSettings:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}))
    return AgentSettings(mcp_config=str(path))


async def connected(server: AgentServing) -> dict[str, Any]:
    """Wait until one MCP server is connected, and return the model's card. A server is ready before
    MCP servers that take more than a few seconds to start, as on a busy machine."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            card: dict[str, Any] = (await server.serving.http.get("/v1/models")).json()["data"][0]
            if card.get("mcp_servers_connected") == 1:
                return card
            await asyncio.sleep(0.05)


async def test_cards_and_system_info_count_mcp_servers_and_tools(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, honest=process_entry("honest"), broken=process_entry("broken"))
    async with agent_server([], settings) as server:
        card = await connected(server)
        assert card["tools_available"] is True
        assert card["mcp_tools_count"] > 3 and card["mcp_servers_connected"] == 1
        info = (await server.serving.http.get("/v1/system/info")).json()["agent"]["mcp_servers"]
        assert {entry["name"]: entry["connected"] for entry in info} == {
            "honest": True,
            "broken": False,
        }
        metrics = (await server.serving.http.get("/metrics")).text
        assert "service_agent_mcp_servers_connected 1.0" in metrics


async def test_tools_of_a_server_are_offered_to_every_request(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, honest=process_entry("honest"))
    async with agent_server([call("honest_add", a=2, b=40), "42."], settings) as server:
        await connected(server)
        answer = (await server.serving.http.post("/v1/chat/completions", json=BODY)).json()
        (entry,) = answer["agentic_tool_calls"]
        assert (entry["name"], entry["result_content"]) == ("honest_add", "42")
        assert answer["choices"][0]["message"]["content"] == "42."
        assert "Add two numbers." in server.prompts[0]


async def test_a_server_that_dies_in_a_call_ends_that_call_only(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, fragile=process_entry("fragile"))
    async with agent_server([call("fragile_die"), "It died."], settings) as server:
        await connected(server)
        answer = (await server.serving.http.post("/v1/chat/completions", json=BODY)).json()
        assert answer["choices"][0]["message"]["content"] == "It died."
        assert answer["agentic_tool_calls"][0]["name"] == "fragile_die"
