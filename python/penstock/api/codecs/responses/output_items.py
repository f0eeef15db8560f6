"""Builds output items from the events of a run, in the order in which the items start."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final, Literal

import msgspec

from penstock.api.codecs.openai_envelope import token_logprobs
from penstock.api.codecs.request_fields.namespaces import Namespaces, qualify
from penstock.api.codecs.responses.citations import citations
from penstock.api.codecs.responses.item_ids import item_id
from penstock.api.codecs.responses.server_tool_items import (
    TOOL_PREFIXES,
    ToolItem,
    ToolItemKind,
    kind_of,
)
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    FileProduced,
    Part,
    PartEnded,
    PartStarted,
    ProducedFile,
    Reasoning,
    ReasoningDelta,
    Text,
    TextDelta,
    TokenLogprob,
    ToolCall,
    ToolCalling,
    ToolCompleted,
    ToolRun,
    TurnEnded,
)
from penstock.dialog.events import Finish, PartKind

ItemStatus = Literal["in_progress", "completed", "incomplete"]
PREFIXES: Final[dict[PartKind, str]] = {"text": "msg_", "reasoning": "rs_", "tool_call": "fc_"}


class Item(msgspec.Struct):
    """One output item, which represents one part of a choice. `index`: position in `output`.
    `pieces`: the deltas received so far. `annotations`: citations of files, set at the end of a
    text."""

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
    annotations: list[dict[str, Any]] = msgspec.field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def content(self) -> dict[str, Any]:
        """Return the content part of a message or reasoning item in its current state."""
        return self._content(self.text, self.logprobs, self.annotations)

    def empty_content(self) -> dict[str, Any]:
        """Return the content part of a message or reasoning item before its first delta."""
        return self._content("", [], [])

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

    def _content(
        self, text: str, logprobs: list[TokenLogprob], annotations: list[dict[str, Any]]
    ) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        tokens = token_logprobs(logprobs)
        return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": tokens}

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
    item; a call of a server tool has the items of `server_tool_items`.

    A text cites the files that server tools made since the text before. Files that are left at the
    end of a choice are cited by a message without text.

    `container`: the id of the container in which server tools run.
    """

    def __init__(self, response_id: str, namespaces: Namespaces, container: str) -> None:
        self._response_id = response_id
        self._namespaces = namespaces
        self._container = container
        self._parts: dict[tuple[int, int], Item] = {}
        self._calls: dict[tuple[int, int], ToolItem] = {}
        self._results: dict[tuple[int, int], ToolItem] = {}
        self._runs: dict[tuple[int, int], ToolRun] = {}
        self._files: dict[int, list[ProducedFile]] = {}
        self._last: dict[int, Item] = {}
        self._closing: dict[int, Item] = {}
        self.items: list[Item | ToolItem] = []

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
                self._end(event)
            case ToolCalling():
                self._start_call(event)
            case ToolCompleted():
                self._end_call(event)
            case FileProduced():
                self._files.setdefault(event.choice, []).append(event.file)
            case TurnEnded():
                self._end_choice(event)
            case _:
                pass

    def item(self, choice: int, part: int) -> Item:
        """Return the item of part number `part` of a choice. The part must have started."""
        return self._parts[choice, part]

    def call_item(self, choice: int, part: int) -> ToolItem | None:
        """Return the item with the input of a server tool call; None if the call has no items. The
        call must have started."""
        return self._calls.get((choice, part))

    def result_item(self, choice: int, part: int) -> ToolItem | None:
        """Return the item with the results of a server tool call; None if the call has no items.
        The call must be complete."""
        return self._results.get((choice, part))

    def closing_item(self, choice: int) -> Item | None:
        """Return the message that cites the files left at the end of a choice; None if there are no
        such files. The choice must have ended."""
        return self._closing.get(choice)

    def mark_incomplete(self) -> None:
        """Mark items that are in progress as incomplete, because the run ended early."""
        for item in self.items:
            if item.status == "in_progress":
                item.status = "incomplete"

    def parts(self) -> tuple[Part | ToolRun, ...]:
        """Return the parts of the first choice for the next turn; incomplete tool calls are left
        out."""
        written = {
            part: item.part()
            for (choice, part), item in self._parts.items()
            if choice == 0 and (item.kind != "tool_call" or item.status == "completed")
        }
        ran = {part: run for (choice, part), run in self._runs.items() if choice == 0}
        return tuple(value for _, value in sorted(chain(written.items(), ran.items()), key=_number))

    def joined(self, kind: PartKind) -> str | None:
        """Return the concatenated text of all items of a kind; None if there are no such items."""
        texts = [item.text for item in self.items if isinstance(item, Item) and item.kind == kind]
        return "".join(texts) if texts else None

    def _start(self, event: PartStarted) -> None:
        namespace, name = self._namespaces.split(event.name or "")
        item = self._new_item(event.choice, event.kind)
        item.call_id, item.name, item.namespace = event.call_id or "", name, namespace
        self._parts[event.choice, event.part] = item
        self._last[event.choice] = item

    def _end(self, event: PartEnded) -> None:
        item = self._parts[event.choice, event.part]
        item.status = status_of(event.value)
        if item.kind == "text":
            item.annotations = citations(item.text, self._files.pop(event.choice, ()))

    def _start_call(self, event: ToolCalling) -> None:
        self._last.pop(event.choice, None)
        kind = kind_of(event)
        if kind is None:
            return
        item = self._new_tool_item(event, kind)
        if kind == "shell_call":
            item.status = "completed"
        self._calls[event.choice, event.part] = item

    def _end_call(self, event: ToolCompleted) -> None:
        place = event.choice, event.part
        self._runs[place] = event.run
        item = self._calls.get(place)
        if item is None:
            return
        if item.kind == "shell_call":
            item = self._new_tool_item(item.calling, "shell_call_output")
        item.complete(event.run)
        self._results[place] = item

    def _end_choice(self, event: TurnEnded) -> None:
        last = self._last.get(event.choice)
        if last is not None:
            last.status = status_at_end(last.kind, last.status, event.finish)
        files = self._files.pop(event.choice, None)
        if files:
            item = self._new_item(event.choice, "text")
            item.status, item.annotations = "completed", citations("", files)
            self._closing[event.choice] = item

    def _new_item(self, choice: int, kind: PartKind) -> Item:
        index = len(self.items)
        item = Item(item_id(PREFIXES[kind], self._response_id, index), index, choice, kind)
        self.items.append(item)
        return item

    def _new_tool_item(self, calling: ToolCalling, kind: ToolItemKind) -> ToolItem:
        index = len(self.items)
        id = item_id(TOOL_PREFIXES[kind], self._response_id, index)
        item = ToolItem(id, index, calling.choice, kind, calling, self._container)
        self.items.append(item)
        return item


def _number(numbered: tuple[int, Part | ToolRun]) -> int:
    return numbered[0]
