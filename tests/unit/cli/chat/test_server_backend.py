"""A running server is found and answers the turns of a chat."""

from __future__ import annotations

import asyncio
import io
import socket

import pytest
from rich.console import Console

from penstock.base.errors import InvalidRequest, NotFound, ServiceError, Unavailable
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.screen import Screen
from penstock.cli.chat.server_backend import connect, find_server
from penstock.cli.chat.session import ChatOptions, chosen_server
from penstock.cli.chat.terminal_chat import Chat
from penstock.cli.settings_parameters import CommandSettings
from penstock.config import ServerSettings
from penstock.dialog import RunStarted, TextDelta
from tests.support.servers.http_server import MODEL, ScriptedLoop, serving, spoken
from tests.support.terminal_chats import ScriptedReader


def free_url():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("no_ui", [False, True])
async def test_a_server_is_found_with_its_models(no_ui):
    async with serving(settings=ServerSettings(no_ui=no_ui)) as server:
        info = await find_server(server.url)
        backend = await connect(server.url, None)
        await backend.close()
    assert [model.id for model in info.texts] == [MODEL]
    assert backend.model.name == MODEL


async def test_no_server_and_a_foreign_server_are_not_found():
    assert await find_server(free_url()) is None

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    foreign = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with foreign:
        port = foreign.sockets[0].getsockname()[1]
        assert await find_server(f"http://127.0.0.1:{port}") is None


async def test_an_address_without_a_server_is_refused_with_a_remedy():
    with pytest.raises(Unavailable, match="penstock serve"):
        await connect(free_url(), None)
    with pytest.raises(InvalidRequest, match=r"--url must be like http://127\.0\.0\.1:1234"):
        await connect("localhost:1234", None)


async def test_an_unknown_model_is_refused_with_the_known_ones():
    async with serving() as server:
        with pytest.raises(NotFound, match=f"has no model 'large', only {MODEL}"):
            await connect(server.url, "large")


def chat_over(backend, *lines):
    out = io.StringIO()
    screen = Screen(Console(file=out, width=200, _environ={}))
    return Chat(backend, Conversation({"temperature": 0.5}), ScriptedReader(lines), screen), out


async def test_a_server_answers_the_same_chat():
    async with serving(spoken("Hel", "lo!")) as server:
        backend = await connect(server.url, None)
        chat, out = chat_over(backend, "one", "/set top_p 0.5", "two", "/stats")
        await chat.talk()
        await backend.close()
        first, second = server.loop.requests
    assert out.getvalue().startswith(f"{MODEL}  {server.url}; /help")
    assert out.getvalue().count("Hello!\n") == 2 and "4 written" in out.getvalue()
    assert first.sampling.temperature == second.sampling.temperature == 0.5
    assert second.sampling.top_p == 0.5
    assert [message.role for message in second.messages] == ["user", "assistant", "user"]


async def test_an_answer_that_the_server_refuses_has_its_message():
    async with serving(lambda r: iter([Unavailable("the engine is restarting")])) as server:
        backend = await connect(server.url, None)
        chat, _ = chat_over(backend)
        with pytest.raises(ServiceError, match="the engine is restarting"):
            await chat.answer_once("hi")
        await backend.close()


async def test_a_lost_connection_is_one_line():
    async with serving() as server:
        backend = await connect(server.url, None)
    chat, out = chat_over(backend, "hi")
    await chat.talk()
    await backend.close()
    assert f"the server at {server.url} does not answer" in out.getvalue()


async def test_an_interrupted_answer_is_cancelled_on_the_server():
    waiting = asyncio.Event()

    def script(request):
        yield RunStarted(MODEL, 0, 1)
        yield from list(spoken("Hel")(request))[1:3]
        yield waiting

    async with serving(script) as server:
        backend = await connect(server.url, None)
        events = backend.run(await asked("hi"))
        async for event in events:
            if isinstance(event, TextDelta):
                break
        await events.aclose()
        await backend.close()
        while server.loop.running:
            await asyncio.sleep(0)
        assert server.loop.cut_short == 1


async def asked(text):
    conversation = Conversation()
    conversation.ask(text)
    return await conversation.turn()


async def test_models_are_switched():
    loops = {"a": ScriptedLoop(spoken("A")), "b": ScriptedLoop(spoken("B"))}
    async with serving(models=loops) as server:
        backend = await connect(server.url, "b")
        chat, out = chat_over(backend, "hi", "/model a", "hi")
        await chat.talk()
        assert [choice.name for choice in backend.choices] == ["a", "b"]
        await backend.close()
    assert f"a answers from now on, {server.url}." in out.getvalue()
    assert [len(loop.requests) for loop in loops.values()] == [1, 1]


@pytest.mark.parametrize(
    ("engine", "options", "uses"),
    [
        ({}, {}, True),
        ({"model": MODEL}, {}, True),
        ({"temperature": 0.5}, {}, True),
        ({"model": "large"}, {}, False),
        ({"threads": 2}, {}, False),
        ({}, {"local": True}, False),
    ],
)
async def test_a_server_on_this_machine_is_used_unless_an_option_needs_an_engine(
    engine, options, uses
):
    async with serving() as server:
        notes = []
        parsed = CommandSettings(engine=engine)
        found = await chosen_server(parsed, ChatOptions(**options), notes.append, server.url)
    assert found == (server.url if uses else None)
    assert len(notes) == (uses or engine.get("model") == "large")
