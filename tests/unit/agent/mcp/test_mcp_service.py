"""Our MCP server, used by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import pytest
from mcp import Client, MCPError

from penstock import __version__
from penstock.agent.mcp_server import ChatMessage, McpService
from penstock.agent.tools.tool import (
    CallContext,
    Tool,
    ToolOutcome,
    decode_arguments,
    function_tool,
)
from penstock.base.errors import InvalidRequest
from penstock.dialog import Permission, PythonActivity, ServerTool
from tests.support.servers.mcp_servers import call as call_of_ours
from tests.support.servers.mcp_servers import connecting, serving_app


class EchoArguments(msgspec.Struct, frozen=True):
    text: str


class Echo:
    """A server tool that repeats its argument and shows an image."""

    info = ServerTool("service_echo", "code_execution", "built_in", "Echo")
    function = function_tool("service_echo", "Repeat a text.", EchoArguments)
    reads_only = True

    def decode(self, arguments: str) -> EchoArguments:
        return decode_arguments(arguments, EchoArguments)

    def describe(self, arguments: EchoArguments) -> PythonActivity:
        return PythonActivity(code=arguments.text)

    async def run(self, arguments: EchoArguments, context: CallContext) -> ToolOutcome:
        raise AssertionError("the service runs tools through `run`")


@dataclass
class Behind:
    """The parts behind the service. `chats`: arguments of each chat."""

    chats: list[tuple[Any, ...]] = field(default_factory=list)
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def chat(
        self, messages: tuple[ChatMessage, ...], max_tokens: int | None, temperature: float | None
    ) -> str:
        self.chats.append((messages, max_tokens, temperature))
        match messages[-1].content:
            case "refuse":
                raise InvalidRequest("the model is too small")
            case "crash":
                raise RuntimeError("a secret path")
            case "wait":
                self.waiting.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    self.cancelled.set()
        return "Hello!"

    async def run(self, tool: Tool[Any], arguments: Any) -> ToolOutcome:
        activity = PythonActivity(code=arguments.text, status="success", images=(b"\x89PNG",))
        return ToolOutcome(activity, {"said": arguments.text}, is_error=arguments.text == "")


@asynccontextmanager
async def offering(
    behind: Behind, permission: Permission = "auto", host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Run the service on loopback, as if it were bound to `host`; yield its URL."""
    service = McpService(host, behind.chat, [Echo()], behind.run, permission)
    async with service.running(), serving_app(service.app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}/mcp"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_chat_answers_with_the_model(mode: Any) -> None:
    behind = Behind()
    async with offering(behind) as url, Client(url, mode=mode) as client:
        if mode == "legacy":
            assert client.server_info is not None
            assert (client.server_info.name, client.server_info.version) == (
                "penstock",
                __version__,
            )
        arguments = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
        result = await client.call_tool("chat", arguments)
        assert not result.is_error and result.content[0].text == "Hello!"  # type: ignore[union-attr]
    assert behind.chats == [((ChatMessage("user", "Hi"),), 5, None)]


async def test_tools_are_listed_with_their_schemas_and_run() -> None:
    async with offering(Behind()) as url, Client(url) as client:
        chat, echo = (await client.list_tools()).tools
        assert (chat.name, echo.name) == ("chat", "service_echo")
        assert set(chat.input_schema["properties"]) == {"messages", "max_tokens", "temperature"}
        assert chat.input_schema["required"] == ["messages"]
        assert echo.input_schema["required"] == ["text"]
        assert echo.annotations is not None and echo.annotations.read_only_hint
        result = await client.call_tool("service_echo", {"text": "x"})
        text, image = result.content
        assert text.text == '{"said":"x"}' and not result.is_error  # type: ignore[union-attr]
        assert image.mime_type == "image/png"  # type: ignore[union-attr]
        assert (await client.call_tool("service_echo", {"text": ""})).is_error


@pytest.mark.parametrize("permission", ["ask", "deny"])
async def test_tools_that_need_an_approval_are_not_there(permission: Permission) -> None:
    async with offering(Behind(), permission) as url, Client(url) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["chat"]
        with pytest.raises(MCPError, match="Unknown tool: service_echo"):
            await client.call_tool("service_echo", {"text": "x"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "missing required field `messages`"),
        ({"messages": []}, "`messages` is empty"),
        ({"messages": [{"role": "robot", "content": ""}]}, "Invalid enum value 'robot'"),
        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "`max_tokens` must be"),
        (
            {"messages": [{"role": "user", "content": "x"}], "temperature": 3},
            "`temperature` must be between 0 and 2",
        ),
        ({"messages": [{"role": "user", "content": "refuse"}]}, "the model is too small"),
    ],
)
async def test_wrong_arguments_and_refusals_are_error_results(
    arguments: dict[str, Any], message: str
) -> None:
    async with offering(Behind()) as url, Client(url) as client:
        result = await client.call_tool("chat", arguments)
        assert result.is_error and message in result.content[0].text  # type: ignore[union-attr]


async def test_a_fault_of_ours_is_not_described() -> None:
    async with offering(Behind()) as url, Client(url) as client:
        with pytest.raises(MCPError, match="internal error"):
            await client.call_tool("chat", {"messages": [{"role": "user", "content": "crash"}]})


async def test_a_client_that_leaves_cancels_its_call() -> None:
    behind = Behind()
    async with offering(behind) as url, Client(url) as client:
        messages = [{"role": "user", "content": "wait"}]
        task = asyncio.create_task(client.call_tool("chat", {"messages": messages}))
        await behind.waiting.wait()
        task.cancel()
        await behind.cancelled.wait()


async def status_of(url: str, **headers: str) -> int:
    """Return the status of a request with these headers."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    accept = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.post(url, json=body, headers={**accept, **headers})).status_code


@pytest.mark.parametrize(
    ("host", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.0.0.1", {"host": "localhost:80"}, 200),
        ("127.0.0.1", {"origin": "http://localhost:3000"}, 200),
        ("127.0.0.1", {"host": "evil.example"}, 421),
        ("127.0.0.1", {"origin": "http://evil.example"}, 403),
        ("0.0.0.0", {"host": "penstock.internal"}, 200),
        ("0.0.0.0", {"origin": "http://192.168.0.7:8080"}, 200),
        ("0.0.0.0", {"origin": "http://evil.example", "host": "evil.example"}, 403),
        ("0.0.0.0", {"origin": "null"}, 403),
    ],
)
async def test_web_pages_of_other_names_are_refused(
    host: str, headers: dict[str, str], status: int
) -> None:
    async with offering(Behind(), host=host) as url:
        assert await status_of(url, **headers) == status


async def test_a_large_body_is_refused() -> None:
    async with offering(Behind()) as url, httpx.AsyncClient(trust_env=False) as http:
        head = {"content-type": "application/json"}
        answer = await http.post(url, content=b" " * (5 << 20), headers=head)
        assert answer.status_code == 413


async def test_our_own_client_can_use_our_own_server() -> None:
    behind = Behind()
    async with (
        offering(behind) as url,
        connecting({"peer": {"url": url}}) as servers,
    ):
        messages = [{"role": "user", "content": "Hi"}]
        assert (await call_of_ours(servers, "peer_chat", messages=messages)).result == "Hello!"
