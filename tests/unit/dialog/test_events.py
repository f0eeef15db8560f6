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
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    Text,
    TextDelta,
    ToolCall,
    ToolResult,
    TurnEnded,
    Usage,
)
from penstock.dialog.fold import FailedRun, Fold, fold
from tests.support.event_strategies import event_streams


@given(event_streams())
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


@given(event_streams())
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


@given(event_streams())
def test_logprobs_keep_their_order(run: list[Event]) -> None:
    answer = fold(run)
    for choice in answer.choices:
        deltas = [e for e in run if isinstance(e, TextDelta) and e.choice == choice.index]
        assert choice.logprobs == [logprob for delta in deltas for logprob in delta.logprobs]


@given(event_streams(), st.randoms(use_true_random=False))
def test_the_fold_does_not_depend_on_how_choices_interleave(
    run: list[Event], random: object
) -> None:
    start, *middle, end = run
    apart = sorted(middle, key=lambda e: e.choice)  # type: ignore[union-attr]  # stable
    assert [k for k, _ in groupby(apart, key=lambda e: e.choice)] == sorted(  # type: ignore[union-attr]
        {e.choice for e in middle}  # type: ignore[union-attr]
    )
    assert fold([start, *apart, end]) == fold(run)


@given(event_streams())
def test_events_survive_the_wire(run: list[Event]) -> None:
    for module in (msgspec.msgpack, msgspec.json):
        data = module.encode(run)
        assert module.decode(data, type=list[Event]) == run


@given(event_streams(), st.integers(0, 20))
def test_a_failure_ends_the_fold_wherever_it_comes(run: list[Event], at: int) -> None:
    failed = RunFailed(503, "server_error", "unavailable", "restarting", "model")
    with pytest.raises(FailedRun) as caught:
        fold([*run[: min(at, len(run) - 1)], failed])
    error = caught.value
    assert (error.status, error.kind, error.code) == (503, "server_error", "unavailable")
    assert (error.message, error.field) == ("restarting", "model")


@given(event_streams())
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
