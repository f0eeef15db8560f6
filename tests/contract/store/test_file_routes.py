"""`/v1/files` and the container aliases, also through the official client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import openai
import pytest
from starlette.types import Message

from penstock.api.http.errors import ClientDisconnected
from penstock.api.routes.files import GetFileContent
from penstock.config import ServerSettings
from penstock.store import FileSource, NewFile
from tests.support.servers.http_server import Serving, serving
from tests.support.stores import MovableClock, opened, store_settings

TOOL = FileSource("service_shell", round=2, turn=1)


@pytest.fixture
async def server() -> AsyncIterator[Serving]:
    async with serving() as running:
        yield running


def multipart(*parts: tuple[str, str | None, bytes], end: bytes = b"--B--\r\n") -> bytes:
    """A body with boundary B of (name, filename, data) parts."""
    body = b""
    for name, filename, data in parts:
        shown = f'form-data; name="{name}"'
        if filename is not None:
            shown += f'; filename="{filename}"'
        body += f"--B\r\nContent-Disposition: {shown}\r\n\r\n".encode() + data + b"\r\n"
    return body + end


MULTIPART = {"content-type": "multipart/form-data; boundary=B"}


async def upload(server: Serving, body: bytes) -> tuple[int, dict[str, object]]:
    answer = await server.http.post("/v1/files", content=body, headers=MULTIPART)
    return answer.status_code, answer.json()


async def test_official_client_uploads_reads_lists_and_deletes(server: Serving) -> None:
    files = server.openai.files
    made = await files.create(file=("notes.txt", b"hello"), purpose="user_data")
    assert made.id.startswith("file-") and made.object == "file"
    assert (made.bytes, made.filename, made.purpose) == (5, "notes.txt", "user_data")
    assert await files.retrieve(made.id) == made
    assert (await files.content(made.id)).content == b"hello"
    assert [file.id async for file in files.list()] == [made.id]
    deleted = await files.delete(made.id)
    assert deleted.deleted and deleted.id == made.id
    with pytest.raises(openai.NotFoundError) as caught:
        await files.retrieve(made.id)
    assert caught.value.code == "file_not_found"


async def test_metadata_has_the_fields_of_the_reference(server: Serving) -> None:
    _, shown = await upload(
        server, multipart(("purpose", None, b"user_data"), ("file", "a.md", b"# x"))
    )
    assert shown["source"] == {"tool": "user_upload", "round": 0, "turn": 0}
    assert (shown["format"], shown["object"]) == ("md", "file")
    assert "truncated" not in shown and shown["created_at"]


async def test_client_pages_through_its_files(server: Serving) -> None:
    ids = [
        (await server.openai.files.create(file=(f"{n}.txt", b""), purpose="user_data")).id
        for n in range(5)
    ]
    assert [file.id async for file in server.openai.files.list(limit=2)] == ids[::-1]
    ascending = server.openai.files.list(limit=2, order="asc")
    assert [file.id async for file in ascending] == ids
    assert [file.id async for file in server.openai.files.list(purpose="vision")] == []
    bad = await server.http.get("/v1/files?limit=0")
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "limit"


async def test_large_upload_arrives_whole(server: Serving) -> None:
    body = bytes(range(256)) * 4 * 4096
    made = await server.openai.files.create(file=("big.bin", body), purpose="user_data")
    assert made.bytes == len(body)
    assert (await server.openai.files.content(made.id)).content == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (multipart(("purpose", None, b"user_data")), "file"),
        (multipart(("file", "a", b"x")), "purpose"),
        (multipart(("file", "a", b"x"), *[("purpose", None, b"p")] * 2), "purpose"),
        (multipart(("file", "a", b"x"), ("purpose", None, b"  ")), "purpose"),
        (multipart(("file", "a", b"x"), ("purpose", None, b"p" * 65)), "purpose"),
        (multipart(("file", "a", b"x"), ("purpose", None, b"p" * 5000)), "purpose"),
        (multipart(("file", "a", b"x"), ("file", "b", b"y")), "file"),
        (multipart(("file", "a", b"x"), ("purpose", None, b"p"), end=b"--B\r\n"), None),
        (multipart(("file", "a", b"x"), end=b""), None),
        (b"", None),
        (b"nothing of the kind", None),
        (multipart(*[("x", None, b"")] * 2000), None),
    ],
)
async def test_bad_upload_is_refused_and_leaves_nothing(
    tmp_path: Path, body: bytes, param: str | None
) -> None:
    async with opened(store_settings(tmp_path)) as store, serving(store=store) as server:
        status, answer = await upload(server, body)
        assert status == 400
        assert answer["error"]["param"] == param  # type: ignore[index]
        assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "", "multipart/x;b=1"])
async def test_other_content_types_are_refused(server: Serving, kind: str) -> None:
    answer = await server.http.post("/v1/files", content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_multipart"


async def test_upload_beyond_the_limit_is_413_while_it_arrives(tmp_path: Path) -> None:
    small = ServerSettings(body_limit_bytes=64 * 1024)
    async with (
        opened(store_settings(tmp_path)) as store,
        serving(store=store, settings=small) as server,
    ):

        async def chunked() -> AsyncIterator[bytes]:
            yield multipart(("file", "a", b"x" * 1000), end=b"")[:-2]
            for _ in range(40):
                yield b"x" * 4096

        answer = await server.http.post("/v1/files", content=chunked(), headers=MULTIPART)
        assert answer.status_code == 413
        assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Temp\\a.txt", "a.txt"),
        ("naïve résumé.pdf", "naïve résumé.pdf"),
        ("日本語.txt", "日本語.txt"),
        ("a\x01b\x7f.txt", "ab.txt"),
        ("..", "file"),
        ("", "file"),
        ("x" * 500 + ".txt", "x" * 196 + ".txt"),
    ],
)
async def test_names_are_made_safe_and_shown_in_full(server: Serving, sent: str, kept: str) -> None:
    status, shown = await upload(
        server, multipart(("purpose", None, b"user_data"), ("file", sent, b"x"))
    )
    assert (status, shown["filename"]) == (200, kept)
    answer = await server.http.get(f"/v1/files/{shown['id']}/content")
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith('inline; filename="') and disposition.isascii()
    assert disposition.endswith(f"filename*=UTF-8''{quote(kept, safe='')}")


async def test_uploaded_page_does_not_run_as_this_servers(server: Serving) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x.html"\r\n'
        b"Content-Type: text/html\r\n\r\n<script>alert(1)</script>\r\n"
    ) + multipart(("purpose", None, b"user_data"))
    _, shown = await upload(server, body)
    answer = await server.http.get(f"/v1/files/{shown['id']}/content")
    assert answer.headers["content-type"] == "text/html"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_content_tells_expired_elided_and_failed_files_apart(tmp_path: Path) -> None:
    clock = MovableClock()
    async with opened(store_settings(tmp_path), clock) as store, serving(store=store) as server:
        files = {
            name: await store.files.create(NewFile(name=name, source=TOOL, **more))
            for name, more in {
                "whole": {"data": b"x"},
                "elided": {"data": None, "size_bytes": 9},
                "failed": {"data": None, "code": "not_produced", "message": "no such file"},
            }.items()
        }
        got = {
            name: await server.http.get(f"/v1/files/{file.id}/content")
            for name, file in files.items()
        }
        assert {name: answer.status_code for name, answer in got.items()} == {
            "whole": 200,
            "elided": 410,
            "failed": 422,
        }
        assert got["failed"].json()["error"]["code"] == "not_produced"
        metadata = (await server.http.get(f"/v1/files/{files['elided'].id}")).json()
        assert metadata["truncated"] is True and metadata["bytes"] == 9
        clock.now += 30 * 60
        late = await server.http.get(f"/v1/files/{files['whole'].id}/content")
        assert late.status_code == 404


async def test_a_container_lists_its_own_files_and_finds_any_by_its_id(tmp_path: Path) -> None:
    async with opened(store_settings(tmp_path)) as store, serving(store=store) as server:
        mine, other = [
            await store.files.create(
                NewFile(name="a.txt", data=b"x", source=TOOL, container_id=container)
            )
            for container in ("cntr_1", "cntr_2")
        ]
        listed = (await server.http.get("/v1/containers/cntr_1/files")).json()
        assert [file["id"] for file in listed["data"]] == [mine.id]
        assert listed["data"][0]["object"] == "container.file"
        assert listed["data"][0]["container_id"] == "cntr_1"
        for file in (mine, other):
            for container in ("cntr_1", "any"):
                url = f"/v1/containers/{container}/files/{file.id}"
                shown = (await server.http.get(url)).json()
                assert (shown["id"], shown["container_id"]) == (file.id, file.container_id)
                assert (await server.http.get(f"{url}/content")).text == "x"
        for path in ("cntr_1/files/file-none", "cntr_1/files/file-none/content"):
            assert (await server.http.get(f"/v1/containers/{path}")).status_code == 404
        client = server.openai.containers.files
        assert [file.id async for file in client.list("cntr_2")] == [other.id]
        assert (await server.http.get("/v1/containers/none/files")).json()["data"] == []


@pytest.mark.parametrize("id", ["file-x", "%00", "a%0ab", "x" * 3000, "%F0%9F%98%80"])
async def test_unknown_ids_of_any_kind_are_404(server: Serving, id: str) -> None:
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content"):
        answer = await server.http.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "file_not_found")
    assert (await server.http.delete(f"/v1/files/{id}")).status_code == 404


async def test_wrong_method_is_told_all_the_right_ones(server: Serving) -> None:
    answer = await server.http.put("/v1/files")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


async def test_large_file_comes_back_whole(server: Serving) -> None:
    body = bytes(range(256)) * 8192
    _, made = await upload(
        server, multipart(("purpose", None, b"user_data"), ("file", "a.bin", body))
    )
    answer = await server.http.get(f"/v1/files/{made['id']}/content")
    assert answer.content == body and answer.headers["content-length"] == str(len(body))


async def test_client_that_leaves_a_download_half_way_harms_nobody(server: Serving) -> None:
    body = b"x" * 8_000_000
    _, made = await upload(
        server, multipart(("purpose", None, b"user_data"), ("file", "a.bin", body))
    )
    path = f"/v1/files/{made['id']}/content"
    async with server.http.stream("GET", path) as answer:
        await anext(answer.aiter_raw())
    assert (await server.http.get(path)).content == body


async def test_client_that_reads_nothing_of_a_download_is_dropped() -> None:
    async with serving(settings=ServerSettings(stall_timeout_s=0.05)) as server:
        body = b"x" * 16_000_000
        _, made = await upload(
            server, multipart(("purpose", None, b"user_data"), ("file", "a.bin", body))
        )
        async with server.http.stream("GET", f"/v1/files/{made['id']}/content") as answer:
            with pytest.raises(httpx.TransportError):
                await server.until(lambda: not server.server.server_state.connections)
                await answer.aread()


async def test_end_of_a_download_waits_no_longer_than_its_pieces() -> None:
    dropped = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body"):
            await dropped.wait()
            await asyncio.Event().wait()

    async with serving(settings=ServerSettings(stall_timeout_s=0.05)) as server:
        _, made = await upload(
            server, multipart(("purpose", None, b"user_data"), ("file", "a.bin", b"x"))
        )
        scope = {"path_params": {"file_id": made["id"]}, "state": {"abort": dropped.set}}
        with pytest.raises(ClientDisconnected):
            await asyncio.wait_for(GetFileContent(server.services)(scope, server_receive, send), 5)
    assert dropped.is_set()


async def server_receive() -> Message:
    raise AssertionError("a download reads no body")
