from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.agent import AgentLoop
from penstock.base.errors import Overloaded, Unavailable
from penstock.dialog import (
    Event,
    GenerateRequest,
    Limits,
    Message,
    PartEnded,
    PartStarted,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    TextDelta,
    TurnEnded,
)
from penstock.dialog.fold import FailedRun, fold
from penstock.generation import Generator
from tests.support.checkpoints.tiny_tokenizer import IM_END, tiny_template, tiny_tokenizer
from tests.support.scripted_engine import RowError, ScriptedEngine, Step

TOKENIZER, TEMPLATE = tiny_tokenizer(), tiny_template()


def loop_over(script: Any) -> tuple[AgentLoop, ScriptedEngine]:
    engine = ScriptedEngine(script)
    return AgentLoop(Generator(engine, TOKENIZER, TEMPLATE)), engine


async def run(script: Any, request: GenerateRequest) -> list[Event]:
    loop, _ = loop_over(script)
    return [event async for event in loop.run(request)]


TOKENS = st.lists(
    st.one_of(
        st.integers(0, 263),
        st.sampled_from([0x61, 0x62, 0xC3, 0xA9]),
        st.lists(st.integers(0, 263), max_size=4).map(tuple),
    ),
    max_size=30,
)
FAULTS = st.sampled_from([None, None, RowError("nan"), Overloaded("full"), Unavailable("gone")])
REQUESTS = st.builds(
    GenerateRequest,
    prompt=st.just("the"),
    n=st.integers(1, 3),
    stop=st.lists(st.text("ab", min_size=1, max_size=2), max_size=2).map(tuple),
    limits=st.builds(Limits, max_tokens=st.one_of(st.none(), st.integers(1, 20))),
    top_logprobs=st.sampled_from([None, 0, 2]),
    ignore_eos=st.booleans(),
    echo=st.just(False),
)


def assert_invariants(events: list[Event]) -> None:
    """Check the invariants of a run, whatever happened in it."""
    ends = [e for e in events if isinstance(e, RunEnded | RunFailed)]
    assert len(ends) == 1 and events[-1] is ends[0]
    assert sum(isinstance(e, RunStarted) for e in events) <= 1
    open_parts: dict[tuple[int, int], str] = {}
    ended: set[tuple[int, int]] = set()
    turns: set[int] = set()
    for event in events:
        match event:
            case PartStarted():
                key = (event.choice, event.part)
                assert key not in open_parts and key not in ended and event.choice not in turns
                open_parts[key] = ""
            case TextDelta():
                open_parts[event.choice, event.part] += event.text
            case PartEnded():
                key = (event.choice, event.part)
                assert isinstance(event.value, Text)
                assert open_parts.pop(key) == event.value.text
                ended.add(key)
            case TurnEnded():
                assert event.choice not in turns
                assert not any(choice == event.choice for choice, _ in open_parts)
                turns.add(event.choice)
    if isinstance(events[-1], RunEnded):
        assert not open_parts


@given(st.lists(TOKENS, min_size=1, max_size=3), FAULTS, REQUESTS)
def test_every_run_keeps_the_invariants_of_its_events(
    scripts: list[list[Step]], fault: Any, request: GenerateRequest
) -> None:
    loop, engine = loop_over(
        lambda r: [
            *scripts[len(engine.requests) % len(scripts)],
            *([fault] if fault is not None else []),
        ]
    )

    async def collect() -> list[Event]:
        return [event async for event in loop.run(request)]

    events = asyncio.run(collect())
    assert_invariants(events)
    assert not engine.active
    if isinstance(events[-1], RunFailed):
        with pytest.raises(FailedRun):
            fold(events)
        return
    answer = fold(events)
    assert len(answer.choices) == request.n
    for choice in answer.choices:
        (part,) = choice.parts
        assert isinstance(part, Text)
        assert not any(stop in part.text for stop in request.stop)


async def test_an_error_of_the_request_ends_the_run_as_an_event() -> None:
    events = await run([], GenerateRequest(prompt="x", n=0))
    (failed,) = events
    assert isinstance(failed, RunFailed)
    assert (failed.status, failed.field, failed.code) == (400, "n", "invalid_value")


async def test_an_engine_error_ends_the_run_after_its_text() -> None:
    events = await run([0x61, Unavailable("restarting")], GenerateRequest(prompt="x"))
    assert [type(e).__name__ for e in events] == [
        "RunStarted",
        "PartStarted",
        "TextDelta",
        "RunFailed",
    ]
    assert isinstance(events[-1], RunFailed) and events[-1].status == 503


async def test_closing_the_run_aborts_it() -> None:
    loop, engine = loop_over([0x61, asyncio.Event()])
    messages = (Message("user", (Text("hi"),)),)
    stream = loop.run(GenerateRequest(messages=messages))
    async for event in stream:
        if isinstance(event, TextDelta):
            break
    await stream.aclose()
    assert engine.aborted and not engine.active


async def test_an_internal_error_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await run([ZeroDivisionError()], GenerateRequest(prompt="x"))


async def test_the_end_token_is_not_part_of_the_answer() -> None:
    events = await run([0x61, IM_END], GenerateRequest(prompt="x"))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["a"]
