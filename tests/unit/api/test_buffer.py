"""The queue between a run and its connection: bounded, and what waits is joined."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.buffer import LIMIT_BYTES, EventBuffer
from penstock.dialog import (
    ArgumentsDelta,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunEnded,
    Text,
    TextDelta,
    TokenLogprob,
    Usage,
)

events = st.lists(
    st.one_of(
        st.builds(TextDelta, st.integers(0, 2), st.integers(0, 1), st.text(max_size=3)),
        st.builds(ReasoningDelta, st.integers(0, 2), st.integers(0, 1), st.text(max_size=3)),
        st.builds(ArgumentsDelta, st.integers(0, 2), st.integers(0, 1), st.text(max_size=3)),
        st.builds(PartStarted, st.integers(0, 2), st.integers(0, 1), st.just("text")),
    ),
    max_size=30,
)


def per_choice(sequence):
    """What each choice says, deltas of one kind and part in a row joined."""
    said = {}
    for event in sequence:
        line = said.setdefault(event.choice, [])
        key = (type(event), event.part)
        if line and line[-1][0] == key and hasattr(event, "text"):
            line[-1] = (key, line[-1][1] + event.text)
        else:
            line.append((key, getattr(event, "text", "")))
    return said


@given(events, st.lists(st.booleans(), max_size=30))
def test_joining_changes_nothing_that_a_choice_says(sequence, takes):
    async def through():
        buffer, out = EventBuffer(), []
        for event, take in zip(sequence, [*takes, *[False] * 30], strict=False):
            await buffer.put(event)
            if take:
                out += await buffer.take()
        buffer.close()
        return out + await buffer.take()

    assert per_choice(asyncio.run(through())) == per_choice(sequence)


async def test_waiting_deltas_of_a_choice_become_one_between_those_of_others():
    buffer = EventBuffer()
    token = TokenLogprob(1, b"a", -1.0)
    for text in ("a", "b", "c"):
        await buffer.put(TextDelta(0, 0, text, (token,)))
        await buffer.put(TextDelta(1, 0, text))
    assert await buffer.take() == [TextDelta(0, 0, "abc", (token,) * 3), TextDelta(1, 0, "abc")]


async def test_nothing_is_joined_across_the_end_of_a_part():
    buffer = EventBuffer()
    steps = [TextDelta(0, 0, "a"), PartEnded(0, 0, Text("a")), TextDelta(0, 0, "b")]
    for step in steps:
        await buffer.put(step)
    assert await buffer.take() == steps


async def test_putting_waits_while_too_much_waits():
    buffer = EventBuffer()
    large = TextDelta(0, 0, "x" * LIMIT_BYTES)
    putting = asyncio.create_task(buffer.put(large))
    await asyncio.sleep(0)
    assert not putting.done()
    assert await buffer.take() == [large]
    await putting


async def test_wake_and_close_let_an_empty_take_return():
    buffer = EventBuffer()
    taking = asyncio.create_task(buffer.take())
    await asyncio.sleep(0)
    buffer.wake()
    assert await taking == []
    buffer.close()
    assert await buffer.take() == []
    await buffer.put(RunEnded("completed", Usage()))
    assert await buffer.take() == [RunEnded("completed", Usage())]
