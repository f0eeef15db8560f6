"""The MCP port of an API process: a model and real tools, used by the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client

from penstock.agent.server_tools import ServerTools
from penstock.api.observability.agent_observer import AgentRecorder
from penstock.api.serving.mcp_listener import McpListener
from penstock.api.serving.sockets import bind_socket
from penstock.base.errors import InvalidRequest
from penstock.config import AgentSettings, ServerSettings
from penstock.dialog.tool_names import EXTRACT_PAGE, SEARCH_THE_WEB
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as files_served
from tests.support.servers.http_server import Serving, serving


@asynccontextmanager
async def listening(script: Any = None, **agent: Any) -> AsyncIterator[tuple[Serving, str]]:
    """Run a server with an MCP port; yield it and the URL of that port."""
    settings = ServerSettings(host="127.0.0.1", agent=AgentSettings(**agent))
    async with serving(*([script] if script else []), settings=settings) as server:
        store = server.services.store
        assert server.services.metrics is not None
        tools = ServerTools(
            settings.agent,
            store.files,
            store.approvals,
            store.skills,
            fetch_allow=["127.0.0.1"],
            observer=AgentRecorder(server.services.metrics.agent, None),
        )
        await tools.start()
        bound = bind_socket("127.0.0.1", 0)
        listener = McpListener(server.services.models, tools, settings, bound)
        await listener.start()
        try:
            yield server, f"http://127.0.0.1:{bound.getsockname()[1]}/mcp"
        finally:
            await listener.close()
            await tools.close()


async def test_chat_answers_with_the_default_model() -> None:
    async with listening() as (server, url), Client(url) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["chat"]
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
        result = await client.call_tool(
            "chat", {"messages": messages, "max_tokens": 9, "temperature": 0.5}
        )
        assert result.content[0].text == "Hello!"  # type: ignore[union-attr]
        (request,) = server.loop.requests
        assert request.limits.max_tokens == 9 and request.sampling.temperature == 0.5
        assert request.messages is not None
        assert [message.role for message in request.messages] == ["system", "user"]


async def test_a_refused_chat_is_an_error_result() -> None:
    def script(request: Any) -> Any:
        yield InvalidRequest("the prompt is too long")

    async with listening(script) as (_, url), Client(url) as client:
        messages = [{"role": "user", "content": "Hi"}]
        result = await client.call_tool("chat", {"messages": messages})
        assert result.is_error
        assert result.content[0].text == "the prompt is too long"  # type: ignore[union-attr]


async def test_closing_the_port_cancels_a_running_chat() -> None:
    reached = asyncio.Event()

    def script(request: Any) -> Any:
        reached.set()
        yield asyncio.Event()

    async with listening(script) as (server, url), Client(url) as client:
        messages = [{"role": "user", "content": "Hi"}]
        task = asyncio.create_task(client.call_tool("chat", {"messages": messages}))
        await reached.wait()
        task.cancel()
        await server.until(lambda: server.loop.cut_short == 1)


PAGE = b"<html><title>T</title><body><p>The tower is 330 metres high.</p></body></html>"


async def test_the_servers_own_tools_are_run_if_calls_need_no_approval() -> None:
    pages = Files()
    pages.add("/page", PAGE, "text/html")
    with files_served(pages):
        async with listening(enable_search=True) as (_, url), Client(url) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["chat", SEARCH_THE_WEB.name, EXTRACT_PAGE.name]
            result = await client.call_tool(EXTRACT_PAGE.name, {"url": f"{pages.url}/page"})
            assert not result.is_error
            assert "330 metres" in result.content[0].text  # type: ignore[union-attr]


async def test_tools_that_need_an_approval_are_not_offered() -> None:
    async with (
        listening(enable_search=True, agent_permission="ask") as (_, url),
        Client(url) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["chat"]


async def test_each_python_call_has_a_container_of_its_own() -> None:
    async with listening(enable_code_execution=True) as (server, url), Client(url) as client:
        for _ in range(2):  # the second call does not find the file of the first
            arguments = {"code": "open('kept', 'x').close()\n6 * 7", "outputs": []}
            result = await client.call_tool("service_execute_python", arguments)
            assert not result.is_error
            assert '"result":"42"' in result.content[0].text  # type: ignore[union-attr]
        text = (await server.http.get("/metrics")).text
        assert 'calls_total{status="success",tool="service_execute_python"} 2.0' in text
