"""The File object, field by field: in the export of a session, and in the metadata of files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.agent import AgentLoop
from penstock.agent.attachments import Attachments
from penstock.fetch import AllowList, Fetcher
from penstock.generation import Generator
from penstock.store import FileSource, NewFile
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving
from tests.support.stores import MovableClock, bodies, opened, store_settings

SOURCE = {"tool": "service_shell", "round": 2, "turn": 1}
INLINE_BYTES = 8 * 1024 * 1024


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Serving]:
    async with (
        opened(store_settings(tmp_path), MovableClock(1_700_000_000)) as store,
        serving(store=store) as running,
    ):
        yield running


async def exported(server: Serving, name: str, data: bytes | None, **fields: Any) -> dict[str, Any]:
    """Return the File object of an agent's output from the export of its session."""
    new = NewFile(
        id="file_run_r2_0",
        name=name,
        data=data,
        source=FileSource("service_shell", 2, 1),
        purpose="agent_output",
        session="s",
        **fields,
    )
    await server.services.store.files.create(new)
    await server.http.put("/v1/sessions/s", json={"messages": []})
    (file,) = (await server.http.get("/v1/sessions/s")).json()["files"]
    shown: dict[str, Any] = file
    return shown


def described(name: str, format: str, mime_type: str, size_bytes: int) -> dict[str, Any]:
    return {
        "id": "file_run_r2_0",
        "name": name,
        "format": format,
        "mime_type": mime_type,
        "bytes": size_bytes,
        "created_at": 1_700_000_000,
        "purpose": "agent_output",
        "source": SOURCE,
    }


async def test_text_has_its_whole_text_and_a_preview(server: Serving) -> None:
    text = "naïve " * 1000
    shown = await exported(server, "a.txt", text.encode())
    preview = shown.pop("preview")
    assert shown == described("a.txt", "txt", "text/plain", 7000) | {"text": text}
    assert text.startswith(preview) and 0 < len(preview) < len(text)


async def test_binary_is_base64(server: Serving) -> None:
    shown = await exported(server, "a.pdf", b"\xff\x00")
    assert shown == described("a.pdf", "pdf", "application/pdf", 2) | {"data_base64": "/wA="}


@pytest.mark.parametrize("byte", [b"a", b"\xff"])
async def test_a_body_over_the_inline_limit_is_left_to_the_content_route(
    server: Serving, byte: bytes
) -> None:
    body = byte * (INLINE_BYTES + 1)
    shown = await exported(server, "a.txt", body)
    assert shown == described("a.txt", "txt", "text/plain", len(body))
    assert (await server.http.get("/v1/files/file_run_r2_0/content")).content == body


async def test_a_body_of_the_inline_limit_is_inline(server: Serving) -> None:
    assert len((await exported(server, "a.txt", b"a" * INLINE_BYTES))["text"]) == INLINE_BYTES


async def test_a_file_that_was_not_made_has_a_code_and_a_message(server: Serving) -> None:
    why = {"code": "not_produced", "message": "a.txt was not produced"}
    shown = await exported(server, "a.txt", None, **why)
    assert shown == described("a.txt", "txt", "text/plain", 0) | why
    metadata = (await server.http.get("/v1/files/file_run_r2_0")).json()
    assert {key: metadata[key] for key in why} == why and metadata["status"] == "error"


async def test_metadata_has_the_fields_of_the_object_but_no_body(server: Serving) -> None:
    shown = await exported(server, "a.md", b"# x")
    metadata = (await server.http.get("/v1/files/file_run_r2_0")).json()
    assert shown.pop("text") == shown.pop("preview") == "# x"
    assert {key: metadata[key] for key in shown} == shown
    assert metadata["filename"] == metadata["name"]
    assert not {"text", "preview", "data_base64", "code", "message"} & set(metadata)


async def test_an_upload_is_user_data_with_an_id_of_uploads(server: Serving) -> None:
    files = {"file": ("a.csv", b"1,2"), "purpose": (None, b"user_data")}
    metadata = (await server.http.post("/v1/files", files=files)).json()
    assert metadata["id"].startswith("file-") and metadata["purpose"] == "user_data"
    assert (metadata["name"], metadata["bytes"]) == ("a.csv", 3)


CHAT_PART = {"type": "file", "file": {"file_id": "file_run_r2_0"}}
MESSAGES_PART = {"type": "document", "source": {"type": "file", "file_id": "file_run_r2_0"}}
RESPONSES_PART = {"type": "input_file", "file_id": "file_run_r2_0"}


@pytest.mark.parametrize(
    ("path", "key", "part"),
    [
        ("/v1/chat/completions", "messages", CHAT_PART),
        ("/v1/messages", "messages", MESSAGES_PART),
        ("/v1/messages/count_tokens", "messages", MESSAGES_PART),
        ("/v1/responses", "input", RESPONSES_PART),
    ],
)
async def test_a_file_without_a_body_is_refused_as_described(
    path: str, key: str, part: dict[str, Any], tmp_path: Path
) -> None:
    body = {"model": "default", "max_tokens": 8, key: [{"role": "user", "content": [part]}]}
    generator = Generator(ScriptedEngine(list(b"hi")), tiny_tokenizer(), tiny_template())
    settings = store_settings(tmp_path)
    async with opened(settings) as store:
        loop: Any = AgentLoop(generator, Attachments(store.files, Fetcher(AllowList(()))))
        async with serving(models={MODEL: loop}, store=store) as server:
            await exported(server, "a.txt", b"gone")
            (gone,) = bodies(settings)
            gone.unlink()
            assert (await server.http.post(path, json=body)).status_code == 410
            await store.files.delete("file_run_r2_0")
            await exported(server, "a.txt", None, code="not_produced", message="it was not")
            assert (await server.http.post(path, json=body)).status_code == 422
