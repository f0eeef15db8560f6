"""Content blocks of a Messages request other than plain text, as decoded."""

from __future__ import annotations

from typing import Any

import pytest
from messages_decoder import PNG, parts, request, user

from penstock.dialog import (
    File,
    Image,
    Message,
    Text,
    ToolResult,
)


def test_images_by_address_and_by_content() -> None:
    def image(source: dict[str, Any]) -> Any:
        return parts({"type": "image", "source": source})[0]

    base = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert image(base) == Image(data=b"\x89PNG", mime_type="image/png")
    address = {"type": "url", "url": "https://a.example/x.png"}
    assert image(address) == Image(url="https://a.example/x.png")
    inline = {"type": "url", "url": f"data:image/png;base64,{PNG}"}
    assert image(inline) == Image(data=b"\x89PNG", mime_type="image/png")
    assert image({"type": "file", "file_id": "file-1"}) == File(file_id="file-1")


def test_image_in_a_result_stands_beside_its_text() -> None:
    source = {"type": "url", "url": "https://a.example/x.png"}
    content = [{"type": "text", "text": "see"}, {"type": "image", "source": source}]
    block = {"type": "tool_result", "tool_use_id": "c", "content": content}
    assert parts(block) == (ToolResult("c", "see"), Image(url="https://a.example/x.png"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            {"type": "text", "media_type": "text/plain", "data": "whole"},
            Text("[Document: t]\nabout\nwhole"),
        ),
        ({"type": "content", "content": "whole"}, Text("[Document: t]\nabout\nwhole")),
        (
            {"type": "content", "content": [{"type": "text", "text": "whole"}]},
            Text("[Document: t]\nabout\nwhole"),
        ),
        (
            {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            File(name="t", data=b"%PDF", mime_type="application/pdf"),
        ),
        ({"type": "url", "url": "https://a.example/d.pdf"}, File(name="t", url="https://a.example/d.pdf")),
        ({"type": "file", "file_id": "file-1"}, File(name="t", file_id="file-1")),
    ],
)  # fmt: skip
def test_documents_of_every_source(source: dict[str, Any], expected: Any) -> None:
    block = {"type": "document", "source": source, "title": "t", "context": "about"}
    assert parts(block) == (expected,)


def test_other_blocks_of_users() -> None:
    found = {
        "type": "search_result",
        "source": "https://a.example",
        "title": "A",
        "content": [{"type": "text", "text": "x"}],
    }
    assert parts(found) == (Text("[Search result: A]\nhttps://a.example\nx"),)
    assert parts({"type": "container_upload", "file_id": "file-1"}) == (File(file_id="file-1"),)


@pytest.mark.parametrize(
    "kind",
    [
        "redacted_thinking",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
    ],
)
def test_blocks_of_server_tools_are_accepted_and_ignored(kind: str) -> None:
    block = {"type": kind, "id": "x", "content": [{"type": "never heard of"}]}
    question = {"role": "user", "content": "hi"}
    words = {"type": "text", "text": "so"}
    answer = {"role": "assistant", "content": [block, words]}
    got = request(messages=[question, answer, question])
    assert got.messages is not None and got.messages[1] == Message("assistant", (Text("so"),))
    got = request(messages=[question, {"role": "assistant", "content": [block]}])
    assert got.messages == (Message("user", (Text("hi"),)),)


def test_media_in_results_and_documents_are_where_the_client_wrote_them() -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PNG},
    }
    result = {"type": "tool_result", "tool_use_id": "c", "content": [picture]}
    source = {"type": "content", "content": [{"type": "text", "text": "x"}, picture]}
    document = {"type": "document", "source": source}
    asked = request(messages=user(result, document))
    assert asked.part_paths == (
        (
            "messages",
            "messages[0].content[0].content[0]",
            "messages",
            "messages[0].content[1].source.content[1]",
        ),
    )
