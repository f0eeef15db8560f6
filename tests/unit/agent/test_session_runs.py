"""Runs within a session, over the real store and a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from penstock.agent import AgentLoop
from penstock.agent.sessions import continued
from penstock.dialog import (
    Event,
    FunctionTool,
    GenerateRequest,
    Limits,
    Message,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    ToolCall,
    ToolResult,
)
from penstock.generation import Generator
from penstock.store import Store
from penstock.store.errors import StorageFull
from penstock.text.tool_parsers import TOOL_SYNTAXES, AnswerSyntax
from tests.support.checkpoints.tiny_tokenizer import tiny_template, tiny_tokenizer
from tests.support.scripted_engine import RowError, ScriptedEngine
from tests.support.stores import opened, sqlite_settings


def said(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


def user(text: str) -> Message:
    return said("user", text)


def answer(text: str) -> Message:
    return said("assistant", text)


CALL = Message("assistant", (ToolCall("call_1", "f", "{}"),))
RESULT = Message("tool", (ToolResult("call_1", "42"),))
BE_SHORT = said("system", "Be short.")
STORED = (BE_SHORT, user("a"), CALL, RESULT, answer("b"))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with opened(sqlite_settings(tmp_path)) as store:
        yield store


def loop_over(script: Any, store: Store) -> tuple[AgentLoop, ScriptedEngine]:
    engine = ScriptedEngine(script)
    generator = Generator(engine, tiny_tokenizer(), tiny_template())
    return AgentLoop(generator, sessions=store.sessions), engine


async def run(loop: AgentLoop, *messages: Message, **more: Any) -> list[Event]:
    request = GenerateRequest(messages=messages, session="s", **more)
    return [event async for event in loop.run(request)]


async def kept(store: Store) -> tuple[Message, ...] | None:
    session = await store.sessions.get("s")
    return None if session is None else session.messages


async def test_session_continues_its_conversation(store: Store) -> None:
    loop, engine = loop_over(list(b"hi"), store)
    for text in ("one", "two"):
        events = await run(loop, user(text))
        assert isinstance(events[-1], RunEnded)
    assert await kept(store) == (user("one"), answer("hi"), user("two"), answer("hi"))
    alone = GenerateRequest(messages=(user("one"), answer("hi"), user("two")))
    _ = [event async for event in loop.run(alone)]
    assert engine.requests[1].token_ids == engine.requests[2].token_ids


async def test_answer_cut_off_by_its_limit_is_kept(store: Store) -> None:
    loop, _ = loop_over(list(b"abcdef"), store)
    events = await run(loop, user("x"), limits=Limits(max_tokens=3))
    assert events[-1] == RunEnded("incomplete", events[-1].usage)  # type: ignore[union-attr]
    assert await kept(store) == (user("x"), answer("abc"))


async def test_a_call_that_broke_off_is_not_kept(store: Store) -> None:
    text = b'Well. <tool_call>{"name": "f", "arguments": {"a": [1'
    answer_syntax = AnswerSyntax(TOOL_SYNTAXES["hermes"])
    engine = ScriptedEngine(list(text))
    generator = Generator(engine, tiny_tokenizer(), tiny_template(), syntax=answer_syntax)
    loop = AgentLoop(generator, sessions=store.sessions)
    await run(loop, user("x"), tools=(FunctionTool("f"),))
    assert await kept(store) == (user("x"), answer("Well."))


@pytest.mark.parametrize(("script", "whole"), [(list(b"42."), "It is 42."), ([], "It is ")])
async def test_answer_that_the_request_begins_is_kept_whole(
    store: Store, script: list[int], whole: str
) -> None:
    loop, _ = loop_over(script, store)
    await run(loop, user("x"), answer_prefix="It is ")
    assert await kept(store) == (user("x"), answer(whole))


async def test_the_first_of_several_answers_is_kept(store: Store) -> None:
    loop, _ = loop_over(list(b"ab"), store)
    await run(loop, user("x"), n=3)
    assert await kept(store) == (user("x"), answer("ab"))


async def test_run_that_fails_leaves_the_session_as_it_was(store: Store) -> None:
    loop, _ = loop_over([*b"a", RowError("bad row")], store)
    await store.sessions.put("s", STORED)
    events = await run(loop, user("x"))
    assert isinstance(events[-1], RunFailed)
    assert await kept(store) == STORED


async def test_a_run_closed_early_releases_its_session(store: Store) -> None:
    gate = asyncio.Event()
    loop, _ = loop_over([*b"a", gate, *b"b"], store)
    async with aclosing(loop.run(GenerateRequest(messages=(user("x"),), session="s"))) as events:
        async for event in events:
            if not isinstance(event, RunStarted):
                break
    assert await kept(store) is None
    gate.set()
    assert isinstance((await run(loop, user("y")))[-1], RunEnded)
    assert await kept(store) == (user("y"), answer("ab"))


async def test_second_run_at_once_is_refused_with_409(store: Store) -> None:
    gate = asyncio.Event()
    loop, _ = loop_over([*b"a", gate], store)
    first = asyncio.create_task(run(loop, user("x")))
    while not loop._generator._engine.active:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    (failed,) = await run(loop, user("y"))
    assert isinstance(failed, RunFailed)
    assert (failed.status, failed.code, failed.field) == (409, "session_busy", "session_id")
    gate.set()
    assert isinstance((await first)[-1], RunEnded)


async def test_an_answer_that_cannot_be_stored_fails_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any) -> bool:
        raise StorageFull

    loop, _ = loop_over(list(b"a"), store)
    monkeypatch.setattr(store.sessions, "save_leased", full)
    events = await run(loop, user("x"))
    assert isinstance(events[-1], RunFailed) and events[-1].status == 507


async def test_session_needs_messages(store: Store) -> None:
    loop, _ = loop_over(list(b"a"), store)
    events = [e async for e in loop.run(GenerateRequest(prompt="x", session="s"))]
    assert isinstance(events[-1], RunFailed) and events[-1].field == "session_id"


@pytest.mark.parametrize(
    ("sent", "whole"),
    [
        # only what is new
        ((user("c"),), (*STORED, user("c"))),
        ((RESULT,), (*STORED, RESULT)),
        # the same words again are something new, not the whole conversation
        ((user("a"),), (*STORED, user("a"))),
        # all of it, without what the client was not shown
        ((user("a"), answer("b"), user("c")), (*STORED, user("c"))),
        ((BE_SHORT, user("a"), answer("b"), user("c")), (*STORED, user("c"))),
        ((user("a"), CALL, RESULT, answer("b"), user("c")), (*STORED, user("c"))),
        # other instructions take the place of the old ones
        ((said("system", "Sing."), user("c")), (said("system", "Sing."), *STORED[1:], user("c"))),
        # an earlier turn was edited
        ((user("a"), answer("B"), user("c")), (BE_SHORT, user("a"), answer("B"), user("c"))),
        # answers of another conversation come after ours
        ((user("x"), answer("y"), user("z")), (*STORED, user("x"), answer("y"), user("z"))),
    ],
)
def test_conversation_that_a_request_continues(
    sent: tuple[Message, ...], whole: tuple[Message, ...]
) -> None:
    assert continued(STORED, sent) == whole
    assert continued((), sent) == sent
