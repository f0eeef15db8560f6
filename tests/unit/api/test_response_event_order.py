"""The stream of any run: events are in order, and the resource is the sum of the deltas."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.codecs.responses import Resource, ResponseIdentity, ResponseStream, decode
from penstock.base.errors import EngineFault
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    FileProduced,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunFailed,
    TextDelta,
    ToolCall,
    ToolCalling,
    ToolResult,
)
from penstock.dialog.fold import fold
from penstock.dialog.transcript import answer_messages
from tests.support.agent_event_strategies import agent_event_streams, completed_calls
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


@given(st.one_of(event_streams(), agent_event_streams()))
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


@given(agent_event_streams())
def test_runs_with_server_tools_have_their_events_in_order(run: list[Event]) -> None:
    events = streamed(run)
    check_frame(events)
    items = events[-1]["response"]["output"]
    for index, item in enumerate(items):
        added, *middle, done = [event for event in events if event.get("output_index") == index]
        assert added["type"] == "response.output_item.added"
        assert added["item"]["status"] == "in_progress"
        assert done["type"] == "response.output_item.done" and done["item"] == item
        assert {event["item_id"] for event in middle} <= {item["id"]} == {added["item"]["id"]}
    assert len({item["id"] for item in items}) == len(items)
    named = [event for event in events if not event["type"].startswith("response.")]
    files = [event for event in run if isinstance(event, FileProduced)]
    assert sum(event["type"] == "file_produced" for event in named) == len(files)


@given(agent_event_streams())
def test_every_file_is_cited_once_and_in_order(run: list[Event]) -> None:
    events = streamed(run)
    items = events[-1]["response"]["output"]
    texts = [item["content"][0] for item in items if item["type"] == "message"]
    cited = [citation for text in texts for citation in text["annotations"]]
    made = [event.file for event in run if isinstance(event, FileProduced)]
    assert [citation["file_id"] for citation in cited] == [file.id for file in made]
    announced = [e["annotation"] for e in events if e["type"].endswith("annotation.added")]
    assert announced == cited
    for text in texts:
        for citation in text["annotations"]:
            span = text["text"][citation["start_index"] : citation["end_index"]]
            assert span == "" or span.endswith(citation["filename"])


@given(agent_event_streams())
def test_the_next_turn_has_every_call_with_its_result(run: list[Event]) -> None:
    resource = Resource(IDENTITY)
    for event in run:
        resource.add(event)
    (choice,) = fold(run).choices
    said = [p for p in choice.parts if not isinstance(p, ToolCall) or p.whole]
    assert resource.messages() == answer_messages(said)
    results = [
        part for m in resource.messages() for part in m.parts if isinstance(part, ToolResult)
    ]
    ran = sorted(completed_calls(run), key=lambda event: event.part)
    assert results == [event.run.result for event in ran]


@given(agent_event_streams())
def test_output_sent_back_as_input_has_the_same_calls(run: list[Event]) -> None:
    output = [item for item in streamed(run)[-1]["response"]["output"] if "call" in item["type"]]
    if not output:
        return
    messages = decode(orjson.dumps({"input": output})).request.messages
    assert messages is not None
    parts = [part for message in messages for part in message.parts]
    sent = [part.name for part in parts if isinstance(part, ToolCall)]
    kept = [i for i in output if i["type"] != "shell_call_output" and has_call(i)]
    assert len(sent) == len(kept)
    answered = [part for part in parts if isinstance(part, ToolResult)]
    known = {part.id for part in parts if isinstance(part, ToolCall)}
    assert all(result.call_id in known for result in answered)


def has_call(item: dict) -> bool:
    """Return whether an item is read as a call. A search without a query is not."""
    action = item.get("action", {})
    return action.get("type") != "search" or bool(action["query"])


@given(agent_event_streams(), st.integers(1, 30))
def test_a_failure_amid_server_tools_ends_the_stream_in_order(run: list[Event], at: int) -> None:
    kept = run[: min(at, len(run) - 1)]
    events = streamed([*kept, FAILED])
    check_frame(events)
    response = events[-1]["response"]
    open_calls = sum(isinstance(event, ToolCalling) for event in kept) - len(completed_calls(kept))
    cut_off = [item for item in response["output"] if item["status"] == "incomplete"]
    written = sum(isinstance(event, PartStarted) for event in kept)
    assert len(cut_off) <= open_calls + written
    assert all(item["status"] != "in_progress" for item in response["output"])
