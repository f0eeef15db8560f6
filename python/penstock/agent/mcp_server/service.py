"""The MCP server: an ASGI application for streamable HTTP at `/mcp`.

It has the tool `chat` and, if calls need no approval, the server's own tools. It keeps no sessions.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from penstock import __version__
from penstock.agent.mcp.package import load_package
from penstock.agent.mcp.results import shortened
from penstock.agent.mcp_server.origins import OriginCheck, loopback_checks
from penstock.agent.tools.tool import (
    BadArguments,
    Tool,
    ToolOutcome,
    decode_arguments,
    function_tool,
)
from penstock.base.errors import ServiceError
from penstock.dialog import FunctionTool, Permission, PythonActivity

if TYPE_CHECKING:
    import mcp_types
    from mcp.server.lowlevel import Server
    from starlette.types import ASGIApp

log = logging.getLogger(__name__)


class ChatMessage(msgspec.Struct, frozen=True):
    """A message of the conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class ChatArguments(msgspec.Struct, frozen=True):
    """The arguments of the tool `chat`."""

    messages: tuple[ChatMessage, ...]
    max_tokens: int | None = None
    temperature: float | None = None


Chat = Callable[[tuple[ChatMessage, ...], int | None, float | None], Awaitable[str]]
"""Returns the model's answer to messages, with (max_tokens, temperature). Raises ServiceError."""

RunTool = Callable[[Tool[Any], Any], Awaitable[ToolOutcome]]
"""Runs a call of a tool with decoded arguments."""

CHAT = function_tool("chat", "Ask the language model of this server.", ChatArguments)


class McpService:
    """The MCP server.

    - `host`: the address that it is bound to. On a loopback address, requests with other names in
      `Host` are refused; elsewhere, requests of web pages from other names.
    - `chat`: answers with the default model.
    - `tools`: the server's own tools. They are listed only if `permission` is "auto": a client
      cannot be asked for an approval.
    - `run`: runs a call of one of `tools`.

    Raises SettingsError if the package `mcp` is not installed.
    """

    def __init__(
        self,
        host: str,
        chat: Chat,
        tools: Sequence[Tool[Any]],
        run: RunTool,
        permission: Permission,
    ) -> None:
        self._chat = chat
        self._tools = {tool.info.name: tool for tool in tools} if permission == "auto" else {}
        self._run = run
        self._server = _server(self._list_tools, self._call_tool)
        checks = loopback_checks(host)
        app: ASGIApp = self._server.streamable_http_app(
            stateless_http=True, host=host, transport_security=checks
        )
        self.app: ASGIApp = OriginCheck(app, host) if checks is None else app
        """The ASGI application. It answers while `running` is entered."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests until the block ends, which cancels running calls. Can be entered
        once."""
        async with self._server.session_manager.run():
            yield

    async def _list_tools(self, context: Any, params: Any) -> mcp_types.ListToolsResult:
        from mcp_types import ListToolsResult

        functions = [(CHAT, True), *((t.function, t.reads_only) for t in self._tools.values())]
        return ListToolsResult(tools=[_declared(f, reads_only) for f, reads_only in functions])

    async def _call_tool(self, context: Any, params: Any) -> mcp_types.CallToolResult:
        try:
            return await self._called(params.name, params.arguments or {})
        except BadArguments as error:
            return _text_result(error.message, is_error=True)
        except ServiceError as error:
            return _text_result(error.message, is_error=True)

    async def _called(self, name: str, values: dict[str, Any]) -> mcp_types.CallToolResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

        arguments = msgspec.json.encode(values).decode()
        if name != CHAT.name and name not in self._tools:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown tool: {name}")
        try:
            if name == CHAT.name:
                chat = _checked(decode_arguments(arguments, ChatArguments))
                answer = await self._chat(chat.messages, chat.max_tokens, chat.temperature)
                return _text_result(answer, is_error=False)
            tool = self._tools[name]
            return _result_of(await self._run(tool, tool.decode(arguments)))
        except (BadArguments, ServiceError):
            raise
        except Exception:
            log.exception("the tool %s failed for an MCP client", name)
            raise MCPError(code=INTERNAL_ERROR, message="internal error") from None


def _server(list_tools: Any, call_tool: Any) -> Server[Any]:
    load_package("--mcp-port")
    from mcp.server.lowlevel import Server

    return Server("penstock", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _declared(function: FunctionTool, reads_only: bool) -> mcp_types.Tool:
    from mcp_types import Tool, ToolAnnotations

    return Tool(
        name=function.name,
        description=function.description,
        input_schema=function.parameters or {"type": "object"},
        annotations=ToolAnnotations(read_only_hint=reads_only),
    )


def _checked(chat: ChatArguments) -> ChatArguments:
    """Return the arguments. Raises BadArguments for values that no model accepts."""
    if not chat.messages:
        raise BadArguments("invalid arguments: `messages` is empty")
    if chat.max_tokens is not None and chat.max_tokens < 1:
        raise BadArguments("invalid arguments: `max_tokens` must be at least 1")
    if chat.temperature is not None and not 0 <= chat.temperature <= 2:
        raise BadArguments("invalid arguments: `temperature` must be between 0 and 2")
    return chat


def _text_result(text: str, *, is_error: bool) -> mcp_types.CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(text=text)], is_error=is_error)


def _result_of(outcome: ToolOutcome) -> mcp_types.CallToolResult:
    """Return a call's result: the text that the model would see, then the images of Python."""
    from mcp_types import ImageContent

    result = outcome.result
    text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    answer = _text_result(shortened(text), is_error=outcome.is_error)
    if isinstance(outcome.activity, PythonActivity):
        for image in outcome.activity.images:
            data = base64.b64encode(image).decode()
            answer.content.append(ImageContent(data=data, mime_type="image/png"))
    return answer
