"""Results and declarations of MCP tools, as the model sees them."""

from __future__ import annotations

from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
)

from penstock.agent.mcp.results import call_result, shortened
from penstock.agent.tools.mcp import MAX_DESCRIPTION_CHARS, McpTool
from penstock.agent.tools.tool import BadArguments


def test_every_kind_of_content_has_a_text() -> None:
    result = CallToolResult(
        content=[
            TextContent(text="a"),
            ImageContent(data="", mime_type="image/png"),
            AudioContent(data="", mime_type="audio/wav"),
            ResourceLink(name="n", uri="file:///x"),
            EmbeddedResource(resource=TextResourceContents(uri="file:///y", text="b")),
            EmbeddedResource(resource=BlobResourceContents(uri="file:///z", blob="")),
        ]
    )
    assert call_result(result).text.split("\n") == [
        "a",
        "[Image: image/png]",
        "[Audio: audio/wav]",
        "[Resource: file:///x]",
        "b",
        "[Resource: file:///z, binary]",
    ]


def test_structured_content_alone_is_json() -> None:
    assert call_result(CallToolResult(content=[], structured_content={"a": 1})).text == '{"a":1}'
    failed = call_result(CallToolResult(content=[TextContent(text="no")], is_error=True))
    assert failed.is_error and failed.text == "no"


def test_long_texts_are_cut_between_characters() -> None:
    assert shortened("é" * 10, 20) == "é" * 10
    assert shortened("é" * 10, 5) == "éé\n[cut: 15 of 20 bytes are not shown]"


def tool_of(**fields: Any) -> McpTool:
    async def call(arguments: dict[str, Any]) -> Any:
        raise AssertionError

    return McpTool("s_t", "s", Tool(name="t", **fields), call)


@pytest.mark.parametrize("schema", [{}, {"type": "array"}, {"properties": []}])
def test_a_schema_that_is_no_objects_schema_is_replaced(schema: dict[str, Any]) -> None:
    assert tool_of(input_schema=schema).function.parameters == {"type": "object", "properties": {}}


def test_a_description_is_cut() -> None:
    function = tool_of(input_schema={}, description="x" * 100_000).function
    assert function.description is not None and len(function.description) == MAX_DESCRIPTION_CHARS


def test_arguments_are_a_json_object() -> None:
    tool = tool_of(input_schema={})
    assert tool.decode("").values == {}
    assert tool.describe(tool.decode(' {"a": 1}')).arguments == '{"a": 1}'
    for wrong in ("[]", "{", "1", '"\ud800"'):
        with pytest.raises(BadArguments, match="the arguments must be a JSON object"):
            tool.decode(wrong)
