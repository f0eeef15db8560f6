"""Builds output items from the events of a run, in the order in which the items start."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from penstock.api.codecs.openai_envelope import token_logprobs
from penstock.api.codecs.request_fields.namespaces import Namespaces, qualify
from penstock.api.codecs.responses.item_ids import item_id
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    Part,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    TurnEnded,
)
from penstock.dialog.events import Finish, PartKind

ItemStatus = Literal["in_progress", "completed", "incomplete"]
PREFIXES: Final[dict[PartKind, str]] = {"text": "msg_", "reasoning": "rs_", "tool_call": "fc_"}


class Item(msgspec.Struct):
    """One output item, which represents one part of a choice. `index`: position in `output`.
    `pieces`: the deltas received so far."""

    id: str
    index: int
    choice: int
    kind: PartKind
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    status: ItemStatus = "in_progress"
    pieces: list[str] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def content(self) -> dict[str, Any]:
        """Return the content part of a message or reasoning item in its current state."""
        return self._content(self.text, self.logprobs)

    def empty_content(self) -> dict[str, Any]:
        """Return the content part of a message or reasoning item before its first delta."""
        return self._content("", [])

    def started(self) -> dict[str, Any]:
        """Return the JSON of the item before its first delta."""
        return self._shown("in_progress", [], "")

    def shown(self) -> dict[str, Any]:
        """Return the JSON of the item in its current state."""
        content = [] if self.kind == "tool_call" else [self.content()]
        return self._shown(self.status, content, self.text)

    def part(self) -> Part:
        """Return the item as a part of the dialog, for the next turn."""
        match self.kind:
            case "text":
                return Text(self.text)
            case "reasoning":
                return Reasoning(self.text)
            case "tool_call":
                return ToolCall(self.call_id, qualify(self.namespace, self.name), self.text)

    def _content(self, text: str, logprobs: list[TokenLogprob]) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        tokens = token_logprobs(logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": tokens}

    def _shown(
        self, status: ItemStatus, content: list[dict[str, Any]], arguments: str
    ) -> dict[str, Any]:
        match self.kind:
            case "text":
                named = {"type": "message", "id": self.id, "status": status, "role": "assistant"}
                return {**named, "content": content}
            case "reasoning":
                named = {"type": "reasoning", "id": self.id, "status": status}
                return {**named, "summary": [], "content": content}
            case "tool_call":
                namespace = {} if self.namespace is None else {"namespace": self.namespace}
                return {
                    "type": "function_call",
                    "id": self.id,
                    "status": status,
                    "call_id": self.call_id,
                    **namespace,
                    "name": self.name,
                    "arguments": arguments,
                }


def status_of(value: Part) -> ItemStatus:
    """Return the status of the item for a part that has ended: `incomplete` for an incomplete tool
    call, else `completed`."""
    return "incomplete" if isinstance(value, ToolCall) and not value.whole else "completed"


def status_at_end(kind: PartKind, status: ItemStatus, finish: Finish) -> ItemStatus:
    """Return the final status of the last item of a choice. Text and reasoning are `incomplete` if
    the token limit ended the choice; otherwise `status` stays."""
    return "incomplete" if finish == "length" and kind != "tool_call" else status


class Output:
    """Builds the output items of one response from its events. Each part of each choice is one
    item."""

    def __init__(self, response_id: str, namespaces: Namespaces) -> None:
        self._response_id = response_id
        self._namespaces = namespaces
        self._parts: dict[tuple[int, int], Item] = {}
        self._last: dict[int, Item] = {}
        self.items: list[Item] = []

    def add(self, event: Event) -> None:
        """Update the items with one event. A tool call is complete if the model wrote all of it;
        the finish reason of a choice decides whether its last text is complete."""
        match event:
            case TextDelta():
                item = self._parts[event.choice, event.part]
                item.pieces.append(event.text)
                if event.logprobs:
                    item.logprobs.extend(event.logprobs)
            case ReasoningDelta() | ArgumentsDelta():
                self._parts[event.choice, event.part].pieces.append(event.text)
            case PartStarted():
                self._start(event)
            case PartEnded():
                self._parts[event.choice, event.part].status = status_of(event.value)
            case TurnEnded():
                last = self._last.get(event.choice)
                if last is not None:
                    last.status = status_at_end(last.kind, last.status, event.finish)
            case _:
                pass

    def item(self, choice: int, part: int) -> Item:
        """Return the item of part number `part` of a choice. The part must have started."""
        return self._parts[choice, part]

    def mark_incomplete(self) -> None:
        """Mark items that are in progress as incomplete, because the run ended early."""
        for item in self.items:
            if item.status == "in_progress":
                item.status = "incomplete"

    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the first choice for the next turn; incomplete tool calls are left
        out."""
        return tuple(
            item.part()
            for item in self.items
            if item.choice == 0 and (item.kind != "tool_call" or item.status == "completed")
        )

    def joined(self, kind: PartKind) -> str | None:
        """Return the concatenated text of all items of a kind; None if there are no such items."""
        texts = [item.text for item in self.items if item.kind == kind]
        return "".join(texts) if texts else None

    def _start(self, event: PartStarted) -> None:
        index = len(self.items)
        namespace, name = self._namespaces.split(event.name or "")
        item = Item(
            id=item_id(PREFIXES[event.kind], self._response_id, index),
            index=index,
            choice=event.choice,
            kind=event.kind,
            call_id=event.call_id or "",
            name=name,
            namespace=namespace,
        )
        self.items.append(item)
        self._parts[event.choice, event.part] = item
        self._last[event.choice] = item
