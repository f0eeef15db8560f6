"""Hypothesis strategies for event streams, as any producer may make them."""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.dialog import (
    ArgumentsDelta,
    Event,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunStarted,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import PartKind

WORDS = st.text(max_size=6)
LOGPROBS = st.lists(
    st.builds(
        TokenLogprob,
        token_id=st.integers(0, 9),
        token_bytes=st.binary(max_size=3),
        logprob=st.floats(-9, 0),
        top=st.lists(
            st.tuples(st.integers(0, 9), st.binary(max_size=2), st.floats(-9, 0)), max_size=2
        ).map(tuple),
    ),
    max_size=2,
).map(tuple)
USAGE = st.builds(Usage, prompt_tokens=st.integers(0, 99), completion_tokens=st.integers(0, 99))


@st.composite
def parts(draw: st.DrawFn, choice: int, part: int) -> list[Event]:
    """Generate one part of a choice: its start, text and end."""
    kind: PartKind = draw(st.sampled_from(["text", "reasoning", "tool_call"]))
    pieces = draw(st.lists(WORDS, max_size=4))
    whole = "".join(pieces)
    if kind == "tool_call":
        start = PartStarted(choice, part, kind, call_id=f"call_{part}", name="f")
        deltas: list[Event] = [ArgumentsDelta(choice, part, piece) for piece in pieces]
        call = ToolCall(f"call_{part}", "f", whole, draw(st.booleans()))
        return [start, *deltas, PartEnded(choice, part, call)]
    if kind == "reasoning":
        deltas = [ReasoningDelta(choice, part, piece) for piece in pieces]
        return [PartStarted(choice, part, kind), *deltas, PartEnded(choice, part, Reasoning(whole))]
    deltas = [TextDelta(choice, part, piece, draw(LOGPROBS)) for piece in pieces]
    return [PartStarted(choice, part, kind), *deltas, PartEnded(choice, part, Text(whole))]


@st.composite
def choices(draw: st.DrawFn, choice: int) -> list[Event]:
    count = draw(st.integers(0, 3))
    events = [event for part in range(count) for event in draw(parts(choice, part))]
    finish = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    stop = draw(st.one_of(st.none(), WORDS))
    return [*events, TurnEnded(choice, finish, draw(USAGE), stop)]


@st.composite
def event_streams(draw: st.DrawFn) -> list[Event]:
    """Generate a whole run, with its choices interleaved."""
    streams = [draw(choices(index)) for index in range(draw(st.integers(1, 3)))]
    order = draw(st.permutations([i for i, stream in enumerate(streams) for _ in stream]))
    iterators = [iter(stream) for stream in streams]
    middle = [next(iterators[index]) for index in order]
    status = draw(st.sampled_from(["completed", "incomplete", "cancelled"]))
    return [RunStarted("m", 7, 3), *middle, RunEnded(status, draw(USAGE))]
