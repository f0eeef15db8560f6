"""Files of requests: stored in a real store, fetched over loopback, shown to the model as text."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.agent import AgentLoop
from penstock.agent import attachments as agent_attachments
from penstock.agent.attachments import Attachments, text_of
from penstock.base.errors import ServiceError
from penstock.dialog import (
    Audio,
    Event,
    File,
    GenerateRequest,
    Image,
    Limits,
    Message,
    RunFailed,
    Text,
    ToolResult,
    Video,
)
from penstock.fetch import AllowList, Fetcher
from penstock.generation import Generator
from penstock.store import NewFile, Store
from penstock.store.records import FileSource
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.file_server import Files
from tests.support.servers.file_server import serving as serving_files
from tests.support.stores import opened, sqlite_settings

TOKENIZER = tiny_tokenizer()
PNG = b"\x89PNG\r\n\x1a\n\x00\x00" + bytes(range(256))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(sqlite_settings(tmp_path)) as store:
        yield store


@pytest.fixture
def attachments(store: Store) -> Attachments:
    return Attachments(store.files, Fetcher(AllowList(["127.0.0.1"])))


def asking(*parts: Any, **fields: Any) -> GenerateRequest:
    return GenerateRequest(messages=(Message("user", parts),), **fields)


def new_file(name: str, data: bytes) -> NewFile:
    return NewFile(name=name, data=data, source=FileSource("user_upload"), purpose="user_data")


async def shown(attachments: Attachments, *parts: Any, **fields: Any) -> list[str]:
    """The texts of the one message."""
    request = await attachments.attach(asking(*parts, **fields))
    assert request.messages is not None
    (message,) = request.messages
    return [part.text for part in message.parts if isinstance(part, Text)]


async def test_inline_text_is_stored_and_shown(attachments: Attachments, store: Store) -> None:
    file = File(name="a.csv", data=b"x,y\n1,2\n", mime_type="text/csv")
    texts = await shown(attachments, Text("sum?"), file, Text("now"), session="s1")
    assert texts == ["sum?", "[File a.csv: text/csv, 8 bytes]\nx,y\n1,2\n\n[end of file]", "now"]
    (stored,) = await store.files.list()
    assert (stored.name, stored.mime_type, stored.purpose) == ("a.csv", "text/csv", "user_data")
    assert stored.source == FileSource("input_file") and stored.session == "s1"
    assert stored.id.startswith("file-") and await store.files.read(stored.id) == b"x,y\n1,2\n"


async def test_media_of_a_kind_that_the_model_reads_are_shown(
    attachments: Attachments, store: Store
) -> None:
    jpeg, wav = b"\xff\xd8\xff" + bytes(9000), b"RIFF\0\0\0\0WAVE" + bytes(100)
    id = (await store.files.create(new_file("b.jpg", jpeg))).id
    parts = (
        File(name="a.png", data=PNG),
        File(file_id=id),
        File(name="c.wav", data=wav, mime_type="audio/x-wav"),
        File(name="d.txt", data=b"BM is text, not a bitmap"),
        File(name="e.bmp", data=b"BM" + bytes(20)),
    )
    request = await attachments.attach(asking(*parts), ("image",))
    (message,) = request.messages or ()
    assert message.parts == (
        Image(data=PNG, mime_type="image/png"),
        Image(data=jpeg, mime_type="image/jpeg"),
        Text(f"[File c.wav: audio/x-wav, {len(wav)} bytes, not shown]"),
        Text("[File d.txt: text/plain, 24 bytes]\nBM is text, not a bitmap\n[end of file]"),
        Image(data=b"BM" + bytes(20), mime_type="image/bmp"),
    )
    assert id in request.file_ids and len(request.file_ids) == 5
    heard = await attachments.preview(asking(*parts), ("audio",))
    (message,) = heard.messages or ()
    assert message.parts[2] == Audio(data=wav, mime_type="audio/x-wav")
    assert isinstance(message.parts[0], Text)


async def test_media_by_url_get_their_content(attachments: Attachments) -> None:
    with serving_files(Files()) as pages:
        pages.add("/a.png", PNG, "image/png")
        by_url = Image(url=f"{pages.url}/a.png")
        sound = Audio(url=f"{pages.url}/none.wav")
        result = ToolResult("c", "read")
        asked = asking(Text("x"), by_url, by_url, sound, result, Image(url="http://127.0.0.1:1/"))
        request = await attachments.attach(asked, ("image",))
        (message,) = request.messages or ()
        whole = Image(url=by_url.url, data=PNG, mime_type="image/png")
        assert message.parts == (Text("x"), whole, whole, *asked.messages[0].parts[3:])
        assert await attachments.preview(asked, ("image",)) == asked
        with pytest.raises(ServiceError) as caught:
            await attachments.attach(asking(Image(url=f"{pages.url}/none.png")), ("image",))
        assert caught.value.code == "url_unreachable"
        many = [Image(url=f"{pages.url}/a.png?{n}") for n in range(65)]
        with pytest.raises(ServiceError) as caught:
            await attachments.attach(asking(*many), ("image",))
        assert caught.value.code == "too_many_media"


async def test_containers_of_audio_and_video_are_told_apart(attachments: Attachments) -> None:
    mp4, m4a = bytes(4) + b"ftypisom" + bytes(20), bytes(4) + b"ftypM4A " + bytes(20)
    webm = b"\x1a\x45\xdf\xa3" + bytes(20)
    parts = (
        File(name="a.mp4", data=mp4),
        File(name="b.m4a", data=m4a),
        File(name="c.webm", data=webm, mime_type="audio/webm"),
        File(name="d.webm", data=webm),
    )
    request = await attachments.preview(asking(*parts), ("audio", "video"))
    (message,) = request.messages or ()
    assert [type(part) for part in message.parts] == [Video, Audio, Audio, Video]
    heard = await attachments.preview(asking(*parts), ("audio",))
    (message,) = heard.messages or ()
    assert [type(part) for part in message.parts] == [Audio] * 4


async def test_binary_is_metadata_only(attachments: Attachments, store: Store) -> None:
    (text,) = await shown(attachments, File(name="a.png", data=PNG))
    assert text == f"[File a.png: image/png, {len(PNG)} bytes, not shown]"
    assert base64.b64encode(PNG).decode()[:8] not in text
    assert await store.files.read((await store.files.list())[0].id) == PNG


async def test_stored_file_is_shown_by_its_id_and_not_stored_again(
    attachments: Attachments, store: Store
) -> None:
    new = NewFile(name="n.md", data="# Grüße".encode(), source=FileSource("user_upload"))
    stored = await store.files.create(new)
    (text,) = await shown(attachments, File(file_id=stored.id, name="other"))
    assert text == "[File n.md: text/markdown, 9 bytes]\n# Grüße\n[end of file]"
    assert len(await store.files.list()) == 1


async def test_a_file_is_named_as_the_client_wrote_it(attachments: Attachments) -> None:
    request = asking(Text("hi"), File(file_id="file-unknown"))
    named = msgspec.structs.replace(
        request,
        messages=(Message("system", (Text("s"),)), *(request.messages or ())),
        part_paths=(("", "input[3].content[1]"),),
    )
    with pytest.raises(ServiceError) as caught:
        await attachments.attach(named)
    assert caught.value.field == "input[3].content[1]"


async def test_only_the_beginning_of_a_stored_file_is_read(
    attachments: Attachments, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"#" * 4_000_000
    stored = await store.files.create(NewFile(name="x.txt", data=data, source=FileSource("shell")))
    read = 0
    opened_by_store = store.files.open

    async def counted(id: str) -> AsyncGenerator[bytes, None]:
        async def pieces() -> AsyncGenerator[bytes, None]:
            nonlocal read
            async with aclosing(await opened_by_store(id)) as inner:
                async for piece in inner:
                    read += len(piece)
                    yield piece

        return pieces()

    monkeypatch.setattr(store.files, "open", counted)
    (text,) = await shown(attachments, File(file_id=stored.id))
    assert text.count("#") == 4096 and text.endswith("[the rest is not shown]")
    assert 0 < read < len(data) // 4


async def test_unknown_and_deleted_ids_are_not_found(
    attachments: Attachments, store: Store
) -> None:
    stored = await store.files.create(
        NewFile(name="x", data=b"x", source=FileSource("user_upload"))
    )
    await store.files.delete(stored.id)
    for file_id in (stored.id, "file-unknown", "../etc/passwd"):
        with pytest.raises(ServiceError) as caught:
            await attachments.attach(asking(Text("hi"), File(file_id=file_id)))
        error = caught.value
        assert (error.status, error.code, error.field) == (404, "file_not_found", "messages[0]")


async def test_placeholder_of_a_file_that_was_not_made_is_refused(
    attachments: Attachments, store: Store
) -> None:
    new = NewFile(
        name="x", data=None, source=FileSource("shell"), code="not_produced", message="was not made"
    )
    stored = await store.files.create(new)
    with pytest.raises(ServiceError) as caught:
        await attachments.attach(asking(File(file_id=stored.id)))
    assert (caught.value.status, caught.value.code) == (422, "not_produced")


async def test_file_without_a_body_is_metadata_only(attachments: Attachments, store: Store) -> None:
    new = NewFile(name="x.txt", data=None, size_bytes=10**9, source=FileSource("shell"))
    stored = await store.files.create(new)
    (text,) = await shown(attachments, File(file_id=stored.id))
    assert text == "[File x.txt: text/plain, 1000000000 bytes, not shown]"


@pytest.mark.parametrize(("size", "whole"), [(4095, True), (4096, True), (4097, False)])
@pytest.mark.parametrize("char", ["a", "é", "🎈"])
async def test_a_preview_has_at_most_4096_characters(
    attachments: Attachments, size: int, whole: bool, char: str
) -> None:
    (text,) = await shown(attachments, File(name="x.txt", data=(char * size).encode()))
    _head, preview, end = text.split("\n")
    assert preview == char * min(size, 4096)
    assert end == ("[end of file]" if whole else "[the rest is not shown]")


async def test_the_previews_of_a_request_have_at_most_32768_characters(
    attachments: Attachments, store: Store
) -> None:
    files = [File(name=f"{i}.txt", data=b"#" * 4000) for i in range(10)]
    texts = await shown(attachments, *files)
    assert [text.count("#") for text in texts] == [4000] * 8 + [32768 - 32000, 0]
    assert texts[9] == "[File 9.txt: text/plain, 4000 bytes]\n\n[the rest is not shown]"
    assert len(await store.files.list()) == 10


@pytest.mark.parametrize(
    ("name", "mime_type", "expected"),
    [
        (None, None, "file.txt: text/plain"),
        (None, "application/json", "file.json: application/json"),
        ("a.py", None, "a.py: text/x-python"),
        ("a", "text/html\r\nx-evil: 1", "a: text/plain"),
        ("../../etc/pass\r\nwd", "text/plain", "passwd: text/plain"),
        ("C:\\x\\b.txt", None, "b.txt: text/plain"),
        ("n" * 300, None, "n" * 200 + ": text/plain"),
    ],
)
async def test_names_and_types_of_clients_are_made_safe(
    attachments: Attachments, store: Store, name: Any, mime_type: Any, expected: str
) -> None:
    (text,) = await shown(attachments, File(name=name, data=b"hi", mime_type=mime_type))
    assert text.startswith(f"[File {expected}, 2 bytes]")
    (stored,) = await store.files.list()
    assert f"{stored.name}: {stored.mime_type}" == expected


async def serve_once(body: bytes, head: str = "") -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 200 OK\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
        )
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def test_file_by_address_is_fetched_stored_and_shown(
    attachments: Attachments, store: Store
) -> None:
    async with await serve_once(b"hello", "content-type: text/plain\r\n") as server:
        port = server.sockets[0].getsockname()[1]
        (text,) = await shown(attachments, File(url=f"http://127.0.0.1:{port}/d/a.txt"))
    assert text == "[File a.txt: text/plain, 5 bytes]\nhello\n[end of file]"
    assert [file.name for file in await store.files.list()] == ["a.txt"]


async def test_the_files_that_a_request_has_fetched_are_bounded_together(
    attachments: Attachments, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_attachments, "MAX_FETCHED_BYTES", 100)
    async with await serve_once(b"x" * 40) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a.txt"
        assert len(await shown(attachments, *[File(url=url)] * 2)) == 2
        with pytest.raises(ServiceError) as caught:
            await attachments.attach(asking(*[File(url=url)] * 3))
    assert caught.value.code == "url_too_large" and caught.value.field == "messages[0]"


async def test_addresses_inside_are_refused(store: Store) -> None:
    strict = Attachments(store.files, Fetcher(AllowList()))
    with pytest.raises(ServiceError) as caught:
        await strict.attach(asking(File(url="http://127.0.0.1:1/x")))
    assert caught.value.code == "url_not_allowed" and caught.value.field == "messages[0]"
    assert await store.files.list() == []


async def test_there_are_at_most_64_files(attachments: Attachments) -> None:
    files = [File(name="x", data=b"x")] * 65
    with pytest.raises(ServiceError, match="at most 64 files"):
        await attachments.preview(asking(*files))


async def test_other_parts_and_messages_stay_as_they_are(attachments: Attachments) -> None:
    messages = (
        Message("system", (Text("s"),)),
        Message("tool", (ToolResult("c", "r"), File(name="a.txt", data=b"hi")), "f"),
    )
    got = await attachments.attach(GenerateRequest(messages=messages, n=3))
    assert got.n == 3 and got.messages is not None
    assert got.messages[0] == messages[0]
    tool = got.messages[1]
    assert tool.name == "f" and tool.parts[0] == ToolResult("c", "r")


def prompt_of(engine: ScriptedEngine) -> str:
    data = b"".join(map(TOKENIZER.token_bytes, engine.requests[-1].token_ids))
    return data.decode()


def loop_over(engine: ScriptedEngine, attachments: Attachments | None) -> AgentLoop:
    return AgentLoop(Generator(engine, TOKENIZER, tiny_template()), attachments)


async def events(loop: AgentLoop, request: GenerateRequest) -> list[Event]:
    return [event async for event in loop.run(request)]


async def test_the_model_reads_the_preview(attachments: Attachments) -> None:
    engine = ScriptedEngine([0x61, IM_END])
    request = asking(Text("sum?"), File(name="a.csv", data=b"1,2"), limits=Limits(max_tokens=5))
    await events(loop_over(engine, attachments), request)
    assert "sum?\n[File a.csv: text/csv, 3 bytes]\n1,2\n[end of file]" in prompt_of(engine)
    first = engine.requests[-1].token_ids
    await events(loop_over(engine, attachments), request)
    assert engine.requests[-1].token_ids == first, "the same file gives the same prompt"


async def test_counting_counts_the_preview_and_stores_nothing(
    attachments: Attachments, store: Store
) -> None:
    engine = ScriptedEngine([0x61, IM_END])
    loop = loop_over(engine, attachments)
    request = asking(File(name="a.csv", data=b"1,2"), limits=Limits(max_tokens=5))
    counted = await loop.count(request)
    assert await store.files.list() == [] and engine.requests == []
    await events(loop, request)
    assert counted == len(engine.requests[-1].token_ids)


async def test_a_faulty_file_fails_the_run(attachments: Attachments) -> None:
    engine = ScriptedEngine([0x61])
    (failed,) = await events(loop_over(engine, attachments), asking(File(file_id="file-0")))
    assert isinstance(failed, RunFailed) and (failed.status, failed.code) == (404, "file_not_found")
    assert engine.requests == []


async def test_files_are_refused_without_a_store() -> None:
    engine = ScriptedEngine([0x61])
    (failed,) = await events(loop_over(engine, None), asking(File(name="a", data=b"x")))
    assert isinstance(failed, RunFailed) and failed.code == "unsupported_value"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"a\tb\r\n\x1b[1mc", "a\tb\r\n\x1b[1mc"),
        (b"\xef\xbb\xbfbom", "bom"),
        ("🎈é".encode(), "🎈é"),
        (b"a\x00b", None),
        (b"\xff\xfea\x00", None),
        ("é".encode("latin-1"), None),
        ("é".encode()[:1], None),
        (b"\x07", None),
    ],
)
def test_text_is_utf8_without_control_characters(data: bytes, text: str | None) -> None:
    assert text_of(data) == text


def test_long_text_is_not_cut_within_a_character() -> None:
    for lead in ("", "a", "ab", "abc", "\ufeff"):
        text = text_of((lead + "🎈" * 10_000).encode())
        assert text is not None and len(text) == 4097
