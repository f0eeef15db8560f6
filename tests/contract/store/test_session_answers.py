"""`session_id` on chat completions and Messages: conversations that go on by their id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from penstock.agent import AgentLoop
from penstock.engine.types import TokenRequest
from penstock.generation import Generator
from penstock.store.errors import StorageFull
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import ScriptedEngine
from tests.support.servers.http_server import MODEL, Serving, serving
from tests.support.stores import opened, store_settings


@asynccontextmanager
async def answering(folder: Path, script: Any) -> AsyncIterator[Serving]:
    """A server whose model says what the script says, over a store in `folder`."""
    async with opened(store_settings(folder)) as store:
        generator = Generator(ScriptedEngine(script), tiny_tokenizer(), tiny_template())
        loop = AgentLoop(generator, sessions=store.sessions)
        async with serving(models={MODEL: loop}, store=store) as server:
            yield server


async def chat(server: Serving, text: str, **more: Any) -> Any:
    return await server.openai.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": text}],
        extra_body={"session_id": "s", **more},
    )


async def exported(server: Serving) -> list[tuple[str, str]]:
    """(role, text) of each message of the session."""
    answer = await server.http.get("/v1/sessions/s")
    assert answer.status_code == 200, answer.text
    return [(message["role"], message["content"]) for message in answer.json()["messages"]]


WHOLE = [("user", "one"), ("assistant", "hi"), ("user", "two"), ("assistant", "hi")]


async def test_chat_goes_on_by_its_session(tmp_path: Path) -> None:
    async with answering(tmp_path, list(b"hi")) as server:
        first = await chat(server, "one")
        assert first.session_id == "s"
        second = await chat(server, "two")
        assert second.usage.prompt_tokens > first.usage.prompt_tokens
        assert await exported(server) == WHOLE


async def test_streamed_chat_goes_on_by_its_session(tmp_path: Path) -> None:
    async with answering(tmp_path, list(b"hi")) as server:
        for text in ("one", "two"):
            stream = await server.openai.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": text}],
                stream=True,
                extra_body={"session_id": "s"},
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[-1].session_id == "s"  # type: ignore[attr-defined]
        assert await exported(server) == WHOLE


async def test_both_dialects_share_a_session(tmp_path: Path) -> None:
    async with answering(tmp_path, list(b"hi")) as server:
        await chat(server, "one")
        async with anthropic.AsyncAnthropic(
            base_url=server.url, api_key="any", max_retries=0
        ) as client:
            message = await client.messages.create(
                model="default",
                max_tokens=10,
                messages=[{"role": "user", "content": "two"}],
                extra_body={"session_id": "s"},
            )
        assert message.session_id == "s"  # type: ignore[attr-defined]
        assert await exported(server) == WHOLE


async def test_client_that_sends_the_whole_conversation_repeats_nothing(tmp_path: Path) -> None:
    async with answering(tmp_path, list(b"hi")) as server:
        messages: list[Any] = []
        for text in ("one", "two"):
            messages.append({"role": "user", "content": text})
            answer = await server.openai.chat.completions.create(
                model="default", messages=messages, extra_body={"session_id": "s"}
            )
            said = answer.choices[0].message
            messages.append({"role": "assistant", "content": said.content})
        assert await exported(server) == WHOLE


async def test_session_outlives_a_restart(tmp_path: Path) -> None:
    for text in ("one", "two"):
        async with answering(tmp_path, list(b"hi")) as server:
            await chat(server, text)
            last = await exported(server)
    assert last == WHOLE


async def test_imported_session_goes_on(tmp_path: Path) -> None:
    async with answering(tmp_path, list(b"hi")) as server:
        await server.http.put(
            "/v1/sessions/s",
            json={
                "messages": [
                    {"role": "user", "content": "one"},
                    {"role": "assistant", "content": "hi"},
                ]
            },
        )
        await chat(server, "two")
        assert await exported(server) == WHOLE


async def test_second_request_at_once_is_409(tmp_path: Path) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    def script(_: TokenRequest) -> list[Any]:
        begun.set()
        return [*b"h", gate, *b"i"]

    async with answering(tmp_path, script) as server:
        first = asyncio.create_task(chat(server, "one"))
        await begun.wait()
        with pytest.raises(openai.ConflictError) as caught:
            await chat(server, "two")
        assert caught.value.code == "session_busy"
        gate.set()
        await first
        assert await exported(server) == WHOLE[:2]


ONE = {"model": "default", "max_tokens": 8, "messages": [{"role": "user", "content": "one"}]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_refusals_of_sessions_are_as_described(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> bool:
        raise StorageFull

    async with answering(tmp_path, list(b"hi")) as server:
        sessions = server.services.store.sessions
        async with sessions.lease("s"):
            busy = await server.http.post(path, json=ONE | {"session_id": "s"})
        monkeypatch.setattr(sessions, "save_leased", full)
        lost = await server.http.post(path, json=ONE | {"session_id": "t"})
    assert (busy.status_code, lost.status_code) == (409, 507)
