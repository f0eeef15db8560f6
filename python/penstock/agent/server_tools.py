"""Builds and owns the objects that run server tools in one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.agent.protocols import (
    AgentObserver,
    ApprovalStore,
    FileStore,
    NoObserver,
    SkillStore,
)
from penstock.agent.tool_provider import ToolProvider, ToolSources
from penstock.agent.tools.sandbox_facts import SandboxFacts
from penstock.agent.workspace import container_id
from penstock.config import AgentSettings, SettingsError
from penstock.sandbox.types import Layers

if TYPE_CHECKING:
    from penstock.agent.mcp import McpServers, ServerStatus
    from penstock.agent.tools.dispatch import DispatchTools
    from penstock.agent.web.ranking import Embed
    from penstock.agent.web.web_tools import WebTools
    from penstock.sandbox.containers import Containers

log = logging.getLogger(__name__)


class ServerTools:
    """The server tools of one process.

    - `files`, `approvals`, `skills`: the stores.
    - `fetch_allow`: private addresses and networks from which pages may be read.
    - `embed`: embeds texts to rank passages of web pages, None to rank them with BM25.

    Raises SettingsError if a library is missing or a setting cannot be used.
    """

    def __init__(
        self,
        settings: AgentSettings,
        files: FileStore,
        approvals: ApprovalStore,
        skills: SkillStore | None = None,
        *,
        fetch_allow: Sequence[str] = (),
        embed: Embed | None = None,
        observer: AgentObserver | None = None,
    ) -> None:
        self.settings = settings
        self.containers = _containers(settings)
        self._web = _web_tools(settings, fetch_allow, embed)
        self._mcp = _mcp_servers(settings)
        self._dispatch = _dispatch_tools(settings)
        self.provider = ToolProvider(
            ToolSources(
                settings,
                files,
                approvals,
                skills,
                self.containers,
                self._sandbox_facts,
                self._web,
                self._mcp,
                self._dispatch,
                observer or NoObserver(),
            )
        )

    async def start(self) -> None:
        """Check the sandbox and connect the MCP servers. Raises SettingsError if a layer of the
        sandbox is missing and the mode is "on"."""
        if self.containers is not None:
            layers = await self.containers.layers()
            _report(layers, self.settings)
        if self._mcp is not None:
            await self._mcp.start()

    async def close(self) -> None:
        """End all containers, MCP servers and connections."""
        if self._web is not None:
            self._web.close()
            await self._web.wait_closed()
        closing = [
            source.close()
            for source in (self.containers, self._mcp, self._dispatch)
            if source is not None
        ]
        for result in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(result, Exception):
                log.error("server tools: %s", result)

    async def forget_session(self, session: str) -> None:
        """End the container of a session that was deleted."""
        if self.containers is not None:
            await self.containers.close_container(container_id(session))

    @property
    def running_containers(self) -> int:
        """Number of containers with running processes."""
        return 0 if self.containers is None else self.containers.running

    def mcp_status(self) -> tuple[ServerStatus, ...]:
        """Return the state of each MCP server."""
        return () if self._mcp is None else self._mcp.status()

    async def sandbox_layers(self) -> Layers | None:
        """Return the layers of the sandbox that hold, None if no tool needs it."""
        return None if self.containers is None else await self.containers.layers()

    async def _sandbox_facts(self) -> SandboxFacts:
        assert self.containers is not None
        layers = await self.containers.layers()
        version = "3"
        packages: tuple[str, ...] = ()
        if self.settings.enable_code_execution:
            facts = await self.containers.python_facts()
            version, packages = facts.version, facts.packages
        confined = layers.namespaces or layers.landlock
        return SandboxFacts(version, packages, layers.network, confined)


def _containers(settings: AgentSettings) -> Containers | None:
    if not settings.needs_sandbox:
        return None
    from penstock.sandbox.containers import Containers

    return Containers(settings)


def _web_tools(
    settings: AgentSettings, fetch_allow: Sequence[str], embed: Embed | None
) -> WebTools | None:
    if not settings.enable_search:
        return None
    from penstock.agent.web.web_tools import WebTools

    return WebTools(settings.search, fetch_allow, embed)


def _mcp_servers(settings: AgentSettings) -> McpServers | None:
    if settings.mcp_config is None:
        return None
    from penstock.agent.mcp import McpServers, read_mcp_config

    return McpServers(read_mcp_config(settings.mcp_config))


def _dispatch_tools(settings: AgentSettings) -> DispatchTools | None:
    if settings.tool_dispatch_url is None:
        return None
    from penstock.agent.tools.dispatch import DispatchTools

    return DispatchTools(settings)


def _report(layers: Layers, settings: AgentSettings) -> None:
    """Log which layers of the sandbox are missing. Raises SettingsError if a required one is."""
    from penstock.sandbox.layers import OPTIONAL_LAYERS

    if settings.sandbox.mode == "off":
        log.warning("the sandbox is off: tools run with the rights of this server's user")
        return
    for layer, reason in layers.missing:
        if settings.sandbox.mode == "on" and layer not in OPTIONAL_LAYERS:
            raise SettingsError(
                f"--sandbox on: the layer {layer} is missing: {reason}; `penstock doctor` names"
                " the cure, and --sandbox auto starts without it"
            )
        log.warning("tools run without the sandbox layer %s: %s (`penstock doctor`)", layer, reason)
