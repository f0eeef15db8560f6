"""The system endpoints describe the server tools and their sandbox."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from penstock.agent.mcp import ServerStatus
from penstock.api.routes.system import Diagnose, GetSystemInfo
from penstock.config import AgentSettings, ServerSettings
from penstock.sandbox.types import Layers

SETTINGS = ServerSettings(agent=AgentSettings(enable_shell=True, tool_dispatch_secret="hush"))


class MeasuredTools:
    """Server tools whose sandbox and MCP servers are in a known state."""

    def mcp_status(self):
        return (ServerStatus(name="files", connected=False, tools=0, last_error="refused"),)

    async def sandbox_layers(self):
        return Layers(namespaces=True, network="none", missing=(("landlock", "not in the kernel"),))


async def body_of(route, tools):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    await route(SimpleNamespace(settings=SETTINGS, tools=tools))({"type": "http"}, receive, send)
    assert b"hush" not in sent[1]["body"]
    return json.loads(sent[1]["body"])


@pytest.mark.asyncio
async def test_system_info_has_the_tools_and_the_sandbox():
    info = await body_of(GetSystemInfo, MeasuredTools())
    assert info["agent"]["shell"] is True and info["agent"]["search"] is False
    failed = {"name": "files", "connected": False, "tools": 0, "error": "refused"}
    assert info["agent"]["mcp_servers"] == [failed]
    assert info["sandbox"]["layers"] == ["namespaces"] and info["sandbox"]["network"] == "none"
    assert info["sandbox"]["missing"] == [{"layer": "landlock", "reason": "not in the kernel"}]


@pytest.mark.asyncio
async def test_the_diagnosis_checks_each_layer():
    checks = (await body_of(Diagnose, MeasuredTools()))["checks"]
    found = {check["name"]: check["status"] for check in checks}
    assert (found["sandbox_namespaces"], found["sandbox_landlock"]) == ("ok", "warn")


@pytest.mark.asyncio
async def test_a_server_without_sandboxed_tools_has_no_sandbox():
    assert (await body_of(GetSystemInfo, None))["sandbox"] is None
    checks = (await body_of(Diagnose, None))["checks"]
    assert not any(check["name"].startswith("sandbox") for check in checks)
