"""Encodes events as OpenAI's numbered stream events, in OpenAI's order."""

from __future__ import annotations

from typing import Any, Final

import orjson

from penstock.api.codecs.agent_events import AgentEvent, agent_event
from penstock.api.codecs.openai_envelope import DONE, KEEP_ALIVE, token_logprobs
from penstock.api.codecs.responses.output_items import (
    Item,
    ItemStatus,
    status_at_end,
    status_of,
)
from penstock.api.codecs.responses.resource import Resource, Status
from penstock.api.codecs.responses.server_tool_items import (
    StreamEvents,
    calling_events,
    completed_events,
)
from penstock.base.errors import ServiceError
from penstock.dialog import (
    ApprovalRequired,
    ArgumentsDelta,
    Event,
    FileProduced,
    PartEnded,
    PartStarted,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    ShellActivity,
    TextDelta,
    ToolActivity,
    ToolCalling,
    ToolCompleted,
    TurnEnded,
)
from penstock.dialog.events import Finish
from penstock.dialog.fold import FailedRun

TERMINAL_EVENTS: Final[dict[Status, str]] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
}
DELTAS: Final = {
    "text": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "tool_call": "response.function_call_arguments.delta",
}

DONES: Final = {
    "text": "response.output_text.done",
    "reasoning": "response.reasoning_text.done",
    "tool_call": "response.function_call_arguments.done",
}

ANNOTATION: Final = "response.output_text.annotation.added"
TEXT_DELTA: Final = b',"delta":'
DELTA_END: Final = b"}\n\n"
NO_LOGPROBS: Final = b',"logprobs":[]'


class ResponseStream:
    """Encodes the events of one response as SSE frames. The caller must add each event to
    `resource` before passing it to `encode`.

    The frame `output_item.done` is held back until the next event of the same choice, which shows
    whether the token limit cut the item off.
    """

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._sequence = 0
        self._begun = False
        self._heads: dict[tuple[int, int], bytes] = {}
        self._ended: dict[int, tuple[Item, ItemStatus]] = {}

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta():
                if not event.logprobs:
                    return self._delta(event, NO_LOGPROBS)
                tokens = orjson.dumps(token_logprobs(event.logprobs))
                return self._delta(event, b',"logprobs":' + tokens)
            case ReasoningDelta() | ArgumentsDelta():
                return self._delta(event, b"")
            case PartStarted():
                item = self._resource.output.item(event.choice, event.part)
                self._heads[event.choice, event.part] = _delta_head(item)
                return self._item_done(event.choice, "stop") + self._start(item)
            case PartEnded():
                item = self._resource.output.item(event.choice, event.part)
                self._ended[event.choice] = item, status_of(event.value)
                return self._content_done(item)
            case ToolCalling():
                return self._calling(event)
            case ToolCompleted():
                return self._completed(event)
            case ApprovalRequired() | FileProduced():
                return self._agent_frame(event)
            case TurnEnded():
                return self._item_done(event.choice, event.finish) + self._closing(event.choice)
            case RunStarted():
                return self._begin()
            case RunEnded():
                return self._begin() + self._end()
            case RunFailed():
                return self.fail(FailedRun(event))

    def fail(self, error: ServiceError) -> bytes:
        """Mark the resource as failed and return the events `error` and `response.failed`."""
        self._resource.fail(error)
        begin = self._begin()
        told = {"code": error.code, "message": error.message, "param": error.field}
        return begin + self._frame("error", told) + self._end()

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        resource = self._resource
        first: Status = "queued" if resource.identity.background else "in_progress"
        created = {"response": resource.shown_at_start(first)}
        frames = self._frame("response.created", created)
        if first == "queued":
            frames += self._frame("response.queued", created)
        working = {"response": resource.shown_at_start("in_progress")}
        return frames + self._frame("response.in_progress", working)

    def _end(self) -> bytes:
        resource = self._resource
        last = TERMINAL_EVENTS[resource.status]
        return self._frame(last, {"response": resource.shown()}) + DONE

    def _start(self, item: Item) -> bytes:
        place = {"output_index": item.index, "item": item.started()}
        frames = self._frame("response.output_item.added", place)
        if item.kind != "tool_call":
            added = {**_place(item), "part": item.empty_content()}
            frames += self._frame("response.content_part.added", added)
        return frames

    def _calling(self, event: ToolCalling) -> bytes:
        item = self._resource.output.call_item(event.choice, event.part)
        frames = self._item_done(event.choice, "stop")
        frames += self._frames(calling_events(item) if item is not None else [])
        return frames + self._progress(event, event.activity)

    def _completed(self, event: ToolCompleted) -> bytes:
        item = self._resource.output.result_item(event.choice, event.part)
        frames = self._frames(completed_events(item, event.run) if item is not None else [])
        return frames + self._progress(event, event.run.activity)

    def _progress(self, event: ToolCalling | ToolCompleted, activity: ToolActivity) -> bytes:
        """Return the service's progress event; b"" for the shell, which reports its progress by
        items alone."""
        return b"" if isinstance(activity, ShellActivity) else self._agent_frame(event)

    def _agent_frame(self, event: AgentEvent) -> bytes:
        name, data = agent_event(event)
        return self._frame(name, data)

    def _closing(self, choice: int) -> bytes:
        """Return the events of the message that cites the files left at the end of a choice; b"" if
        there is none."""
        item = self._resource.output.closing_item(choice)
        if item is None:
            return b""
        done = {"output_index": item.index, "item": item.shown()}
        frames = self._start(item) + self._content_done(item)
        return frames + self._frame("response.output_item.done", done)

    def _delta(self, event: TextDelta | ReasoningDelta | ArgumentsDelta, tail: bytes) -> bytes:
        number = self._sequence
        self._sequence += 1
        head, text = self._heads[event.choice, event.part], orjson.dumps(event.text)
        return b"%b%d%b%b%b%b" % (head, number, TEXT_DELTA, text, tail, DELTA_END)

    def _content_done(self, item: Item) -> bytes:
        if item.kind == "tool_call":
            told = {**_call_place(item), "name": item.name, "arguments": item.text}
            return self._frame(DONES[item.kind], told)
        place, content = _place(item), item.content()
        cited = b"".join(
            self._frame(ANNOTATION, {**place, "annotation_index": number, "annotation": annotation})
            for number, annotation in enumerate(item.annotations)
        )
        told = {key: value for key, value in content.items() if key in ("text", "logprobs")}
        done = cited + self._frame(DONES[item.kind], {**place, **told})
        return done + self._frame("response.content_part.done", {**place, "part": content})

    def _item_done(self, choice: int, finish: Finish) -> bytes:
        """Return `output_item.done` for the part of a choice that ended last; b"" if it was sent
        already. `finish`: why the choice ended, "stop" while it continues."""
        ended = self._ended.pop(choice, None)
        if ended is None:
            return b""
        item, status = ended
        shown = {**item.shown(), "status": status_at_end(item.kind, status, finish)}
        return self._frame("response.output_item.done", {"output_index": item.index, "item": shown})

    def _frames(self, events: StreamEvents) -> bytes:
        return b"".join(self._frame(name, payload) for name, payload in events)

    def _frame(self, name: str, payload: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, "sequence_number": self._sequence, **payload})
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def closing_frame(resource: dict[str, Any], number: int) -> bytes:
    """Return the last event of a stream that broke off. `resource`: the stored resource; `number`:
    the event's sequence number."""
    name = TERMINAL_EVENTS[resource["status"]]
    data = orjson.dumps({"type": name, "sequence_number": number, "response": resource})
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _place(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index, "content_index": 0}


def _call_place(item: Item) -> dict[str, Any]:
    return {"item_id": item.id, "output_index": item.index, "call_id": item.call_id}


def _delta_head(item: Item) -> bytes:
    """Return the bytes that precede the sequence number in each delta of an item."""
    name = DELTAS[item.kind]
    place = _call_place(item) if item.kind == "tool_call" else _place(item)
    data = orjson.dumps({"type": name, **place})
    return b"event: " + name.encode() + b"\ndata: " + data[:-1] + b',"sequence_number":'
