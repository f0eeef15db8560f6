"""The stream of any run: events are in order, and the resource is the sum of the deltas."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.responses import Resource, ResponseIdentity, ResponseStream, decode
from penstock.base.errors import EngineFault
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunFailed,
    TextDelta,
    ToolCall,
)
from tests.support.event_strategies import event_streams
from tests.support.servers.responses_server import events_of, parsed

IDENTITY = ResponseIdentity("resp_" + "0" * 32, "m", decode(b'{"input":"x"}').echoed)
KINDS = {"message": "text", "reasoning": "reasoning", "function_call": "tool_call"}
TERMINAL = ("response.completed", "response.failed", "response.incomplete")
FAILED = RunFailed(500, "server_error", "engine_fault", "the engine failed")


def streamed(run: list[Event]) -> list[dict]:
    """Encode each event right after it was added."""
    resource = Resource(IDENTITY)
    encoder = ResponseStream(resource)
    frames = b""
    for event in run:
        resource.add(event)
        frames += encoder.encode(event)
    return events_of(frames.decode())


def streamed_behind(run: list[Event]) -> list[dict]:
    """Add all events before the first is encoded, as with a slow client."""
    resource = Resource(IDENTITY)
    encoder = ResponseStream(resource)
    for event in run:
        resource.add(event)
    return parsed(b"".join(map(encoder.encode, run)).decode())


def check_frame(events: list[dict]) -> None:
    """Check for consecutive numbers, one first and one last event."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert [name for name in names if name in TERMINAL] == [names[-1]]


@given(event_streams())
def test_every_run_has_its_events_in_order(run: list[Event]) -> None:
    events = streamed(run)
    check_frame(events)
    items = events[-1]["response"]["output"]
    started = [event for event in run if isinstance(event, PartStarted)]
    assert [KINDS[item["type"]] for item in items] == [event.kind for event in started]
    for index, item in enumerate(items):
        mine = [event for event in events if event.get("output_index") == index]
        check_item(mine, item)


def check_item(events: list[dict], final: dict) -> None:
    """Check an item: added, (part added), deltas, done, (part done), done; all with one id."""
    added, *middle, done = events
    assert added["type"] == "response.output_item.added"
    assert done["type"] == "response.output_item.done" and done["item"] == final
    assert added["item"]["status"] == "in_progress"
    assert {event["item_id"] for event in middle} == {final["id"]} == {added["item"]["id"]}
    if final["type"] == "function_call":
        *deltas, text_done = middle
        assert text_done["arguments"] == final["arguments"] == joined(deltas)
        return
    part_added, *deltas, text_done, part_done = middle
    (content,) = final["content"]
    assert part_added["part"]["text"] == ""
    assert part_done["part"] == content
    assert text_done["text"] == content["text"] == joined(deltas)
    if final["type"] == "message":
        tokens = [token for delta in deltas for token in delta["logprobs"]]
        assert tokens == text_done["logprobs"] == content["logprobs"]


def joined(deltas: list[dict]) -> str:
    assert len({event["type"] for event in deltas}) <= 1
    return "".join(event["delta"] for event in deltas)


def without_times(events: list[dict]) -> list[dict]:
    return [
        {**event, "response": {**event["response"], "completed_at": None, "created_at": None}}
        if "response" in event
        else event
        for event in events
    ]


@given(event_streams())
def test_a_slow_client_gets_the_same_stream(run: list[Event]) -> None:
    assert without_times(streamed_behind(run)) == without_times(streamed(run))


@given(event_streams(), st.integers(1, 30))
def test_a_failure_anywhere_ends_the_stream_in_order(run: list[Event], at: int) -> None:
    kept = run[: min(at, len(run) - 1)]
    events = streamed([*kept, FAILED])
    check_frame(events)
    error, failed = events[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    response = failed["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "engine_fault")
    written: dict[tuple[int, int], str] = {}
    ended = set()
    for event in kept:
        if isinstance(event, PartStarted):
            written[event.choice, event.part] = ""
        elif isinstance(event, TextDelta | ReasoningDelta | ArgumentsDelta):
            written[event.choice, event.part] += event.text
        elif isinstance(event, PartEnded):
            ended.add((event.choice, event.part))
    for (place, text), item in zip(written.items(), response["output"], strict=True):
        shown = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert shown == text and (place in ended or item["status"] == "incomplete")


@given(event_streams())
def test_error_outside_the_run_ends_the_stream(run: list[Event]) -> None:
    resource = Resource(IDENTITY)
    encoder = ResponseStream(resource)
    events = parsed(encoder.fail(EngineFault("the store is gone")).decode())
    check_frame(events)
    assert [event["type"] for event in events[2:]] == ["error", "response.failed"]


@given(event_streams())
def test_next_turn_continues_the_first_choice(run: list[Event]) -> None:
    resource = Resource(IDENTITY)
    for event in run:
        resource.add(event)
    parts = [e.value for e in run if isinstance(e, PartEnded) and e.choice == 0]
    said = [part for part in parts if not isinstance(part, ToolCall) or part.whole]
    assert list(resource.output.parts()) == said
