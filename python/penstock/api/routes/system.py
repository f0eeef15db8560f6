"""Endpoints of `/v1/system/info` and `/v1/system/doctor`."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.routes.answers import send_json
from penstock.api.schema.system import Diagnosis
from penstock.api.services import Services
from penstock.config import read_environment
from penstock.system.agent_facts import (
    LAYER_NAMES,
    agent_info,
    sandbox_checks,
    sandbox_info,
)
from penstock.system.checks import machine_checks
from penstock.system.facts import McpServerInfo, SystemInfo, system_info


class GetSystemInfo:
    """GET: returns a description of the machine, the build and the server tools."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(msgspec.json.encode(await _system(self._services)), send)


class Diagnose:
    """POST: runs those checks of `penstock doctor` that apply while a server runs, and returns
    their results."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        system = await _system(self._services)
        # The checks read the disk.
        checks = await asyncio.to_thread(machine_checks, read_environment())
        if system.sandbox is not None:
            checks += sandbox_checks(system.sandbox)
        await send_json(msgspec.json.encode(Diagnosis(system, checks)), send)


async def _system(services: Services) -> SystemInfo:
    info = system_info(read_environment())
    settings, tools = services.settings.agent, services.tools
    servers = () if tools is None else tools.mcp_status()
    mcp = tuple(McpServerInfo(s.name, s.connected, s.tools, s.last_error) for s in servers)
    layers = None if tools is None else await tools.sandbox_layers()
    sandbox = None
    if layers is not None:
        held = {name: getattr(layers, name) for name in LAYER_NAMES}
        sandbox = sandbox_info(settings.sandbox, held, layers.network, layers.missing)
    return msgspec.structs.replace(info, agent=agent_info(settings, mcp), sandbox=sandbox)
