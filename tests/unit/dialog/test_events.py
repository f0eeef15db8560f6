"""The invariants of an event stream, over drawn runs: what every producer and codec may rely on."""

from __future__ import annotations

from itertools import groupby

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialog import (
    ArgumentsDelta,
    Event,
    Message,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolResult,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import PartKind
from penstock.dialog.fold import FailedRun, Fold, fold

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
    """One part of a choice: started, written, ended."""
    kind: PartKind = draw(st.sampled_from(["text", "reasoning", "tool_call"]))
    pieces = draw(st.lists(WORDS, max_size=4))
    whole = "".join(pieces)
    if kind == "tool_call":
        start = PartStarted(choice, part, kind, call_id=f"call_{part}", name="f")
        deltas: list[Event] = [ArgumentsDelta(choice, part, piece) for piece in pieces]
        return [start, *deltas, PartEnded(choice, part, ToolCall(f"call_{part}", "f", whole))]
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
def runs(draw: st.DrawFn) -> list[Event]:
    """A whole run, its choices interleaved."""
    streams = [draw(choices(index)) for index in range(draw(st.integers(1, 3)))]
    order = draw(st.permutations([i for i, stream in enumerate(streams) for _ in stream]))
    iterators = [iter(stream) for stream in streams]
    middle = [next(iterators[index]) for index in order]
    status = draw(st.sampled_from(["completed", "incomplete", "cancelled"]))
    return [RunStarted("m", 7, 3), *middle, RunEnded(status, draw(USAGE))]


@given(runs())
def test_the_fold_is_the_concatenation_of_the_deltas(run: list[Event]) -> None:
    answer = fold(run)
    for choice in answer.choices:
        written: dict[int, str] = {}
        for event in run:
            if isinstance(event, PartStarted) and event.choice == choice.index:
                written[event.part] = ""
            if (
                isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta)
                and event.choice == choice.index
            ):
                written[event.part] += event.text
        texts = [p.arguments if isinstance(p, ToolCall) else p.text for p in choice.parts]
        assert texts == list(written.values())


@given(runs())
def test_the_fold_keeps_what_each_choice_and_the_run_ended_with(run: list[Event]) -> None:
    answer = fold(run)
    ends = {event.choice: event for event in run if isinstance(event, TurnEnded)}
    assert [choice.index for choice in answer.choices] == sorted(ends)
    for choice in answer.choices:
        assert choice.finish == ends[choice.index].finish
        assert choice.stop_sequence == ends[choice.index].stop_sequence
    last = run[-1]
    assert isinstance(last, RunEnded)
    assert (answer.usage, answer.status, answer.model, answer.created) == (
        last.usage,
        last.status,
        "m",
        7,
    )


@given(runs())
def test_logprobs_keep_their_order(run: list[Event]) -> None:
    answer = fold(run)
    for choice in answer.choices:
        deltas = [e for e in run if isinstance(e, TextDelta) and e.choice == choice.index]
        assert choice.logprobs == [logprob for delta in deltas for logprob in delta.logprobs]


@given(runs(), st.randoms(use_true_random=False))
def test_the_fold_does_not_depend_on_how_choices_interleave(
    run: list[Event], random: object
) -> None:
    start, *middle, end = run
    apart = sorted(middle, key=lambda e: e.choice)  # type: ignore[union-attr]  # stable
    assert [k for k, _ in groupby(apart, key=lambda e: e.choice)] == sorted(  # type: ignore[union-attr]
        {e.choice for e in middle}  # type: ignore[union-attr]
    )
    assert fold([start, *apart, end]) == fold(run)


@given(runs())
def test_events_survive_the_wire(run: list[Event]) -> None:
    for module in (msgspec.msgpack, msgspec.json):
        data = module.encode(run)
        assert module.decode(data, type=list[Event]) == run


@given(runs(), st.integers(0, 20))
def test_a_failure_ends_the_fold_wherever_it_comes(run: list[Event], at: int) -> None:
    failed = RunFailed(503, "server_error", "unavailable", "restarting", "model")
    with pytest.raises(FailedRun) as caught:
        fold([*run[: min(at, len(run) - 1)], failed])
    error = caught.value
    assert (error.status, error.kind, error.code) == (503, "server_error", "unavailable")
    assert (error.message, error.field) == ("restarting", "model")


@given(runs())
def test_adding_one_by_one_is_folding_at_once(run: list[Event]) -> None:
    state = Fold()
    for event in run:
        state.add(event)
    assert state.answer == fold(run)


def test_messages_with_every_kind_of_part_survive_the_wire() -> None:
    message = Message(
        "assistant",
        (Text("a"), Reasoning("b"), ToolCall("c", "f", "{}"), ToolResult("c", "d", "f")),
        "name",
    )
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_total_tokens_are_prompt_and_completion() -> None:
    assert Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2).total_tokens == 7


@pytest.mark.parametrize("kind", [Text, Message, TextDelta, Usage])
def test_the_vocabulary_is_frozen(kind: type[msgspec.Struct]) -> None:
    values = {
        Text: Text("a"),
        Message: Message("user", ()),
        TextDelta: TextDelta(0, 0, "a"),
        Usage: Usage(),
    }
    with pytest.raises(AttributeError):
        setattr(values[kind], kind.__struct_fields__[0], "other")  # type: ignore[index]
