"""Server tools on Messages: Anthropic's client reads the blocks, and sends them back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from messages_decoder import request, user

from penstock.dialog import (
    CustomActivity,
    Event,
    FileProduced,
    GenerateRequest,
    Message,
    PartEnded,
    PartStarted,
    ProducedFile,
    PythonActivity,
    RunEnded,
    RunStarted,
    SearchActivity,
    SearchHit,
    ServerTool,
    ShellActivity,
    Text,
    TextDelta,
    ToolActivity,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolResult,
    ToolRun,
    TurnEnded,
)
from tests.support.servers.http_server import CREATED, MODEL, USAGE, Serving, serving

HELLO: Any = {"model": MODEL, "max_tokens": 64, "messages": [{"role": "user", "content": "hi"}]}
SEARCH = ServerTool("service_search_the_web", "web_search", "built_in", "Web search")
FETCH = ServerTool("service_website_content_extractor", "web_search", "built_in", "Web page")
PYTHON = ServerTool("service_execute_python", "code_execution", "built_in", "Python code")
SHELL = ServerTool("service_shell", "shell", "built_in", "Shell command")
FILES = ServerTool("service_list_files", "file", "built_in", "File access")
WIKI = ServerTool("wiki_find", "external", "mcp", "find", "wiki")
HIT = SearchHit(title="Graz", url="https://a.example/graz", description="d", content="A city.")
PICTURE = ProducedFile(
    id="file_r_r0_0", name="a.png", format="png", mime_type="image/png", size_bytes=4,
    created_at=CREATED, tool=PYTHON.name, round=0, turn=1, container_id="cntr_1", data=b"\x89PNG",
)  # fmt: skip
CALLS: list[tuple[ServerTool, str, ToolActivity, str, tuple[ProducedFile, ...]]] = [
    (SEARCH, '{"query":"graz"}', SearchActivity(query="graz", status="success", hits=(HIT,)),
     '{"sources":["a.example"]}', ()),
    (FETCH, '{"url":"https://a.example/graz"}',
     SearchActivity(url=HIT.url, status="success", hits=(HIT,)), '{"output":"A city."}', ()),
    (PYTHON, '{"code":"1+1"}',
     PythonActivity(code="1+1", status="success", stdout="out", result="2"),
     '{"status":"success"}', (PICTURE,)),
    (SHELL, '{"commands":["ls","pwd"]}',
     ShellActivity(commands=("ls", "pwd"), status="success", stdout="/", exit_code=0),
     '{"exit_code":0}', ()),
    (FILES, "{}", CustomActivity(arguments="{}", status="success", content="[]"), "[]", ()),
    (WIKI, '{"q":1}', CustomActivity(arguments='{"q":1}', status="error", content="no"), "no", ()),
]  # fmt: skip


def researching(asked: GenerateRequest) -> Any:
    """Run each tool in a round of its own, then answer."""
    yield RunStarted(asked.model or "", CREATED, USAGE.prompt_tokens, session="s_1")
    for index, (tool, arguments, activity, result, files) in enumerate(CALLS):
        call = ToolCall(f"call_{index}", tool.name, arguments)
        run = ToolRun(
            round=index, call=call, tool=tool, activity=activity, files=files,
            result=ToolResult(call.id, result, tool.name, tool is WIKI),
        )  # fmt: skip
        yield ToolCalling(0, index, index, call, tool, activity)
        yield ToolCompleted(0, index, run)
        yield from (FileProduced(0, file) for file in files)
    yield from said(len(CALLS), "Done.")
    yield TurnEnded(0, "stop", USAGE)
    yield RunEnded("completed", USAGE)


def said(part: int, text: str) -> list[Event]:
    return [
        PartStarted(0, part, "text"),
        TextDelta(0, part, text),
        PartEnded(0, part, Text(text)),
    ]


@asynccontextmanager
async def client_of(script: Any) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, Serving]]:
    async with (
        serving(script) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client,
    ):
        yield client, server


async def whole_and_streamed(messages: Any) -> tuple[Any, Any]:
    """Return the message that a client gets in one piece and the one that it accumulates."""
    whole = await messages.create(**HELLO)
    async with messages.stream(**HELLO) as stream:
        async for _ in stream:
            pass
        return whole, await stream.get_final_message()


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_official_client_reads_all_blocks_whole_and_streamed() -> None:
    async with client_of(researching) as (client, _):
        for messages in (client.messages, client.beta.messages):
            whole, final = await whole_and_streamed(messages)
            given = [block.to_dict() for block in whole.content]
            for block in given:
                block.pop("parsed_output", None)
            streamed = [block.to_dict() for block in final.content]
            for block in streamed:
                block.pop("parsed_output", None)
            assert streamed == given
            assert final.usage.server_tool_use.web_search_requests == 1
            assert final.usage.server_tool_use == whole.usage.server_tool_use
            assert whole.session_id == final.session_id == "s_1"
            assert [file["id"] for file in whole.files] == [PICTURE.id]


async def test_official_client_types_every_block() -> None:
    async with client_of(researching) as (client, _):
        message = await client.beta.messages.create(**HELLO)
    types = anthropic.types.beta
    validated = [type(block).model_validate(block.to_dict()) for block in message.content]
    assert [type(block) for block in validated] == [
        types.BetaServerToolUseBlock,
        types.BetaWebSearchToolResultBlock,
        types.BetaServerToolUseBlock,
        types.BetaWebFetchToolResultBlock,
        types.BetaServerToolUseBlock,
        types.BetaCodeExecutionToolResultBlock,
        types.BetaServerToolUseBlock,
        types.BetaBashCodeExecutionToolResultBlock,
        types.BetaMCPToolUseBlock,
        types.BetaMCPToolResultBlock,
        types.BetaMCPToolUseBlock,
        types.BetaMCPToolResultBlock,
        types.BetaTextBlock,
    ]
    search, fetch, python, shell = (message.content[index] for index in (1, 3, 5, 7))
    assert search.content[0].url == HIT.url
    assert fetch.content.content.source.data == "A city."
    assert (python.content.stdout, python.content.return_code) == ("out\n2", 0)
    assert [output.file_id for output in python.content.content] == [PICTURE.id]
    assert message.content[6].input == {"command": "ls\npwd", "commands": ["ls", "pwd"]}
    assert message.content[10].server_name == "wiki" and message.content[11].is_error
    assert shell.content.stdout == "/"


async def test_blocks_that_a_client_sends_back_are_calls_and_results_again() -> None:
    async with client_of(researching) as (client, server):
        answer = await client.messages.create(**HELLO)
        again = [*HELLO["messages"], {"role": "assistant", "content": answer.content}]
        more = {"role": "user", "content": "more"}
        await client.messages.create(**HELLO | {"messages": [*again, more]})
        got = server.loop.requests[-1].messages or ()
    expected: list[Message] = []
    for index, (tool, arguments, _, result, _) in enumerate(CALLS):
        call = ToolCall(f"call_{index}", tool.name, arguments)
        answered = ToolResult(call.id, result, tool.name, tool is WIKI)
        expected += [Message("assistant", (call,)), Message("tool", (answered,))]
    assert list(got[1:-1]) == [*expected, Message("assistant", (Text("Done."),))]


def test_results_without_our_own_field_are_made_from_their_content() -> None:
    def result(kind: str, content: Any) -> ToolResult:
        call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": kind, "input": {}}
        answer = {"type": f"{kind}_tool_result", "tool_use_id": "srvtoolu_1", "content": content}
        turns = [
            *user({"type": "text", "text": "hi"}),
            {"role": "assistant", "content": [call, answer]},
        ]
        messages = request(messages=turns).messages or ()
        part = messages[-1].parts[0]
        assert isinstance(part, ToolResult) and part.call_id == "call_1"
        return part

    foreign = {"type": "web_search_result", "url": "https://a.example", "title": "A",
               "encrypted_content": "EqgfCioIARgBIiQ3YTAw"}  # fmt: skip
    found = result("web_search", [foreign])
    assert found.text == '{"output":[{"url":"https://a.example","title":"A"}]}'
    failed = result("bash_code_execution", {"type": "bash_code_execution_tool_result_error",
                                            "error_code": "unavailable"})  # fmt: skip
    assert failed.text == '{"error_code":"unavailable"}' and failed.is_error
    printed = {"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0}
    assert not result("code_execution", printed).is_error


@pytest.mark.parametrize("key", [7, None, [1], {"a": 1}])
def test_blocks_of_server_tools_with_odd_ids_are_ignored(key: Any) -> None:
    call = {"type": "server_tool_use", "id": key, "name": "web_search", "input": {}}
    answer = {"type": "web_search_tool_result", "tool_use_id": key, "content": []}
    said = {"type": "text", "text": "so"}
    turns = [*user(said), {"role": "assistant", "content": [call, answer, said]}, *user(said)]
    assert (request(messages=turns).messages or ())[1] == Message("assistant", (Text("so"),))
