"""The MCP server of an API process, on a port of its own: `--mcp-port`."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from contextlib import aclosing
from typing import Any, Final

from penstock.agent.mcp_server import ChatMessage, McpService
from penstock.agent.protocols import CallStatus
from penstock.agent.server_tools import ServerTools
from penstock.agent.tools.tool import CallContext, Tool, ToolOutcome
from penstock.agent.workspace import container_id
from penstock.api.models.model_catalog import ModelCatalog
from penstock.api.serving.uvicorn_server import HttpServer
from penstock.base.errors import NotFound
from penstock.base.ids import new_id
from penstock.config import AgentSettings, ServerSettings
from penstock.dialog import (
    GenerateRequest,
    HostedTool,
    Limits,
    Message,
    PythonTool,
    Sampling,
    SearchTool,
    ShellTool,
    Text,
    ToolCall,
    ToolPolicy,
)
from penstock.dialog.fold import Fold
from penstock.dialog.tool_names import EXECUTE_PYTHON, EXTRACT_PAGE, SEARCH_THE_WEB, SHELL

log = logging.getLogger(__name__)

OFFERED: Final = frozenset(
    tool.name for tool in (EXECUTE_PYTHON, SHELL, SEARCH_THE_WEB, EXTRACT_PAGE)
)
"""The tools that MCP clients can use. The others need a session, which the protocol lacks."""


class McpListener:
    """Serves MCP on the socket `bound` from `start` to `close`. `models`: `chat` answers with the
    default one, without tools: an MCP client has tools of its own."""

    def __init__(
        self,
        models: ModelCatalog,
        tools: ServerTools,
        settings: ServerSettings,
        bound: socket.socket,
    ) -> None:
        self._models = models
        self._tools = tools
        self._settings = settings
        self._bound = bound
        self._server: HttpServer | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once connections are accepted. Raises SettingsError if the package `mcp` is not
        installed."""
        service = McpService(
            self._settings.host,
            self._chat,
            await self._offered_tools(),
            self._run_tool,
            self._settings.agent.agent_permission,
        )
        started = asyncio.Event()
        self._server = HttpServer(
            service.app, self._settings, on_started=started.set, handles_signals=False
        )
        self._task = asyncio.create_task(self._serve(service, self._server))
        waiting = asyncio.ensure_future(started.wait())
        await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if started.is_set():
            host, port = self._bound.getsockname()[:2]
            log.info("MCP server at port %d of %s, path /mcp", port, host)

    async def close(self) -> None:
        """Close all connections, which cancels running calls."""
        if self._server is not None and self._task is not None:
            self._server.stop()
            self._server.stop()  # the second call does not wait for open requests
            await self._task

    async def _serve(self, service: McpService, server: HttpServer) -> None:
        async with service.running():
            await server.serve(sockets=[self._bound])

    async def _chat(
        self, messages: tuple[ChatMessage, ...], max_tokens: int | None, temperature: float | None
    ) -> str:
        """Return the default model's answer. Raises ServiceError."""
        model = self._models.default
        request = GenerateRequest(
            model=model,
            messages=tuple(Message(m.role, (Text(m.content),)) for m in messages),
            sampling=Sampling(temperature=temperature),
            limits=Limits(max_tokens=max_tokens),
            tool_policy=ToolPolicy("none"),
        )
        fold = Fold()
        async with aclosing(self._models[model].run(request)) as events:
            async for event in events:
                fold.add(event)
        parts = fold.answer.choices[0].parts
        return "".join(part.text for part in parts if isinstance(part, Text))

    async def _offered_tools(self) -> list[Tool[Any]]:
        return list((await self._tools_of("mcp")).values())

    async def _run_tool(self, tool: Tool[Any], arguments: Any) -> ToolOutcome:
        """Run a call in a container of its own, which ends with the call."""
        session = new_id("mcp-")
        call = ToolCall(new_id("call_"), tool.info.name, "")
        context = CallContext(session, container_id(session), 0, call, _request(()))
        started_s = time.monotonic()
        status: CallStatus = "error"
        try:
            tools = await self._tools_of(session)
            if tool.info.name not in tools:
                raise NotFound(f"the tool {tool.info.name} is gone")
            outcome = await tools[tool.info.name].run(arguments, context)
            status = "error" if outcome.is_error else "success"
            return outcome
        finally:
            seconds = time.monotonic() - started_s
            self._tools.provider.sources.observer.call_ended(tool.info, status, seconds)
            await self._tools.forget_session(session)

    async def _tools_of(self, session: str) -> dict[str, Tool[Any]]:
        request = _request(_hosted(self._settings.agent))
        toolbox, _ = await self._tools.provider.toolbox(request, session, container_id(session))
        return {name: tool for name, tool in toolbox.tools.items() if name in OFFERED}


def _request(hosted: tuple[HostedTool, ...]) -> GenerateRequest:
    return GenerateRequest(model="", messages=(), hosted=hosted)


def _hosted(settings: AgentSettings) -> tuple[HostedTool, ...]:
    """Return the tools that the operator has turned on."""
    hosted: list[HostedTool] = []
    if settings.enable_search:
        hosted.append(SearchTool())
    if settings.enable_code_execution:
        hosted.append(PythonTool())
    if settings.enable_shell:
        hosted.append(ShellTool())
    return tuple(hosted)
