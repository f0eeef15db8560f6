"""`/v1/sessions/{id}`: export, import, delete."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.sessions import decode_session, encode_message
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Audio,
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Video,
)
from penstock.store import FileSource, NewFile
from tests.support.servers.http_server import Serving, serving

SESSION: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "42", "name": "f"},
        {"role": "assistant", "content": "It is 42."},
    ],
    "files": [],
}  # fmt: skip


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


async def put(server: Serving, id: str, body: Any) -> Any:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await server.http.put(f"/v1/sessions/{quote(id, safe='')}", content=data)


async def test_imported_session_is_exported_as_it_was(server: Serving) -> None:
    imported = await put(server, "s", SESSION)
    assert (imported.status_code, imported.content) == (200, b"")
    assert (await server.http.get("/v1/sessions/s")).json() == SESSION


async def test_import_replaces(server: Serving) -> None:
    await put(server, "s", SESSION)
    await put(server, "s", {"messages": []})
    assert (await server.http.get("/v1/sessions/s")).json() == {"messages": [], "files": []}


async def test_unknown_session_is_404_and_delete_is_always_200(server: Serving) -> None:
    missing = await server.http.get("/v1/sessions/none")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "session_not_found"
    await put(server, "s", SESSION)
    for _ in range(2):
        answer = await server.http.delete("/v1/sessions/s")
        assert (answer.status_code, answer.content) == (200, b"")
    assert (await server.http.get("/v1/sessions/s")).status_code == 404
    for path in ("%00", "x" * 3000):
        assert (await server.http.get(f"/v1/sessions/{path}")).status_code == 404
        assert (await server.http.delete(f"/v1/sessions/{path}")).status_code == 200


@pytest.mark.parametrize("id", ["a/b", "/", "a/../b", "ä ?#%2F", "100%", "s/"])
async def test_session_of_any_accepted_id_is_reached(server: Serving, id: str) -> None:
    url = f"/v1/sessions/{quote(id, safe='')}"
    assert (await put(server, id, SESSION)).status_code == 200
    assert (await server.http.get(url)).json() == SESSION
    assert (await server.http.delete(url)).status_code == 200
    assert (await server.http.get(url)).json()["error"]["code"] == "session_not_found"


async def test_line_end_is_part_of_a_session_id(server: Serving) -> None:
    await put(server, "s", SESSION)
    assert (await server.http.delete("/v1/sessions/s%0A")).status_code == 200
    assert (await server.http.get("/v1/sessions/s")).json() == SESSION


async def test_files_of_a_session_go_with_it(server: Serving) -> None:
    store = server.services.store
    for name, data in (("a.txt", b"hi"), ("b.bin", b"\xff\x00")):
        await store.files.create(
            NewFile(name=name, data=data, source=FileSource("service_shell", 1, 0), session="s")
        )
    await store.files.create(
        NewFile(name="c", data=None, code="not_produced", message="no", session="s",
                source=FileSource("service_shell"))
    )  # fmt: skip
    await put(server, "s", SESSION)
    exported = (await server.http.get("/v1/sessions/s")).json()
    shown = {file["name"]: file for file in exported["files"]}
    assert shown["a.txt"]["text"] == "hi" and shown["a.txt"]["source"]["round"] == 1
    assert shown["b.bin"]["data_base64"] == "/wA="
    assert shown["c"]["code"] == "not_produced" and "text" not in shown["c"]
    for file in await store.files.list(session="s"):
        await store.files.delete(file.id)
    assert (await put(server, "s", exported)).status_code == 200
    brought = {file["name"]: file["id"] for file in exported["files"]}
    assert await store.files.read(brought["a.txt"]) == b"hi"
    assert await store.files.read(brought["b.bin"]) == b"\xff\x00"
    again = (await server.http.get("/v1/sessions/s")).json()
    for file in (*again["files"], *shown.values()):
        del file["created_at"]
    assert {file["name"]: file for file in again["files"]} == shown


async def test_import_does_not_touch_the_files_of_others(server: Serving) -> None:
    store = server.services.store
    mine = await store.files.create(NewFile(name="a", data=b"mine", source=FileSource("x")))
    await put(
        server, "s", {"messages": [], "files": [{"id": mine.id, "name": "a", "text": "theirs"}]}
    )
    assert await store.files.read(mine.id) == b"mine"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[]", None),
        (b"{", None),
        ({}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:;base64,?"}}]}]},
         "messages[0].content[0].image_url.url"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
         "messages[0].content[0].file.file_id"),
        ({"messages": [], "images": ["x"]}, "images"),
        ({"messages": [], "files": [{"id": "../x", "name": "a"}]}, "files[0].id"),
        ({"messages": [], "files": [{"id": "file-1"}]}, "files[0].name"),
        ({"messages": [], "files": [{"id": "file-1", "name": "a", "data_base64": "?"}]},
         "files[0].data_base64"),
        ({"messages": [], "files": [{"id": "file-1", "name": "a", "mime_type": "a\nb"}]},
         "files[0].mime_type"),
    ],
)  # fmt: skip
async def test_bad_session_is_refused_by_name_and_changes_nothing(
    server: Serving, body: Any, param: str | None
) -> None:
    await put(server, "s", SESSION)
    answer = await put(server, "s", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert (await server.http.get("/v1/sessions/s")).json() == SESSION


@pytest.mark.parametrize("id", ["a\nb", "x" * 257, "\x00"])
async def test_bad_id_is_refused(server: Serving, id: str) -> None:
    answer = await put(server, id, SESSION)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session_id")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.none() | texts.filter(bool)
addresses = st.sampled_from(["https://example.com/x", "http://h/y?z"])
mime_types = st.none() | st.sampled_from(["image/png", "text/plain"])
media = st.one_of(
    *(
        st.one_of(
            st.builds(kind, url=addresses),
            st.builds(kind, data=st.binary(max_size=20), mime_type=mime_types),
        )
        for kind in (Image, Audio, Video)
    ),
    st.builds(File, file_id=texts, name=names),
    st.builds(File, data=st.binary(max_size=20), name=names, mime_type=mime_types),
    st.builds(File, url=addresses, name=names),
)
contents = st.lists(st.one_of(st.builds(Text, texts), media), max_size=3)
calls = st.lists(st.builds(ToolCall, texts.filter(bool), texts, texts), max_size=2)
thoughts = st.lists(st.builds(Reasoning, texts.filter(bool)), max_size=1)


def said(parts: list[Part]) -> Message:
    return Message("assistant", tuple(parts))


messages = st.one_of(
    st.builds(
        lambda role, parts, name: Message(role, tuple(parts), name),
        st.sampled_from(["system", "developer", "user"]),
        contents,
        names,
    ),
    st.builds(lambda t, c, k: said([*t, *c, *k]), thoughts, contents, calls),
    st.builds(
        lambda id, text, name, failed: Message("tool", (ToolResult(id, text, name, failed),), name),
        texts,
        texts,
        names,
        st.booleans(),
    ),
)


@given(st.lists(messages, max_size=4))
def test_any_conversation_comes_back_from_its_export(conversation: list[Message]) -> None:
    exported = [m for message in conversation for m in encode_message(message)]
    body = orjson.dumps({"messages": exported, "files": []})
    assert decode_session(body).messages == tuple(conversation)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "files", "id", "name", "file", "url"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_json_is_a_session_or_refused(messages: Any, files: Any) -> None:
    try:
        decode_session(orjson.dumps({"messages": messages, "files": files}))
    except InvalidRequest as error:
        assert error.message
