"""The response resource: the body of answers to POST and GET, and part of the stream's first and
last events."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec
import orjson

from penstock.api.codecs.openai_chunks import generation_field
from penstock.api.codecs.request_fields.field_paths import FieldPaths
from penstock.api.codecs.request_fields.namespaces import Namespaces
from penstock.api.codecs.responses.output_items import Output
from penstock.base.errors import ServiceError
from penstock.dialog import (
    ArgumentsDelta,
    Event,
    Message,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    RunStarted,
    TextDelta,
    TurnEnded,
    Usage,
)
from penstock.dialog.events import Finish
from penstock.dialog.fold import FailedRun
from penstock.dialog.transcript import answer_messages

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]
TERMINAL: Final = ("completed", "failed", "incomplete", "cancelled")
# The reasons for incomplete responses.
LIMITS: Final[dict[Finish, str]] = {"length": "max_output_tokens", "rounds": "max_tool_rounds"}
INTERRUPTED: Final = "interrupted"


class ResponseIdentity(msgspec.Struct, frozen=True):
    """The fields of a response that are known before generation starts. `echoed`: the request's
    fields that the resource repeats. `field_paths`: maps field names in errors to paths in the
    request body. `namespaces`: the namespaces of the functions. `container`: the id of the
    container of the conversation, in which server tools run."""

    id: str
    model: str
    echoed: dict[str, Any]
    background: bool = False
    field_paths: FieldPaths = msgspec.field(default_factory=FieldPaths)
    namespaces: Namespaces = msgspec.field(default_factory=Namespaces)
    container: str = ""


class Resource:
    """A response during and after generation, built from the events of its run. `body` is final
    after RunEnded, RunFailed, `fail` or `cancel`."""

    def __init__(self, identity: ResponseIdentity) -> None:
        self.identity = identity
        self.output = Output(identity.id, identity.namespaces, identity.container)
        self.status: Status = "queued" if identity.background else "in_progress"
        self.created = int(time.time())
        self.completed: int | None = None
        self.usage: Usage | None = None
        self.error: ServiceError | None = None
        self.adapter_generation: str | None = None
        self._stopped_by: str | None = None

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    def add(self, event: Event) -> None:
        """Update the resource with one event."""
        self.output.add(event)
        match event:
            case TextDelta() | ReasoningDelta() | ArgumentsDelta():
                pass  # the most frequent events come first
            case RunStarted():
                self.created = event.created
                self.adapter_generation = event.adapter_revision
            case TurnEnded():
                self._stopped_by = self._stopped_by or LIMITS.get(event.finish)
            case RunEnded():
                self._end(event)
            case RunFailed():
                self.fail(FailedRun(event))
            case _:
                pass

    def begin(self) -> None:
        """Set the status to `in_progress`."""
        self.status = "in_progress"

    def fail(self, error: ServiceError) -> None:
        """Set the status to `failed`. Items that were generated before stay."""
        self.status, self.error = "failed", error
        self.output.mark_incomplete()

    def cancel(self) -> None:
        """Set the status to `cancelled`, because a client cancelled the response."""
        self.status = "cancelled"
        self.output.mark_incomplete()

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of the answer for the next turn of the conversation, with the calls
        of server tools and their results."""
        return answer_messages(self.output.parts())

    def shown(self) -> dict[str, Any]:
        """Return the resource's JSON object in its current state, with the output so far."""
        items = [item.shown() for item in self.output.items]
        return self._shown(self.status, items)

    def shown_at_start(self, status: Status) -> dict[str, Any]:
        """Return the resource's JSON object without output, with the given status."""
        return self._shown(status, [])

    def body(self) -> bytes:
        """Return the resource as JSON text. It contains output only after the response has
        ended."""
        return orjson.dumps(self.shown() if self.ended else self.shown_at_start(self.status))

    def _end(self, event: RunEnded) -> None:
        self.usage = event.usage
        if event.status == "cancelled":
            self.cancel()
            return
        self.status = event.status
        if event.status == "completed":
            self.completed = int(time.time())

    def _shown(self, status: Status, items: list[dict[str, Any]]) -> dict[str, Any]:
        over = status in TERMINAL
        incomplete = None
        if status == "incomplete":
            incomplete = {"reason": self._stopped_by or INTERRUPTED}
        return {
            "id": self.identity.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.completed if over else None,
            "status": status,
            "model": self.identity.model,
            **generation_field(self.adapter_generation),
            "output": items,
            "output_text": self.output.joined("text") if items else None,
            "reasoning": self.output.joined("reasoning") if items else None,
            "error": error_object(self.error) if over else None,
            "incomplete_details": incomplete,
            "usage": usage_object(self.usage) if over else None,
            **self.identity.echoed,
        }


def usage_object(usage: Usage | None) -> dict[str, Any] | None:
    """Return the `usage` object of the Responses API; None if the usage is not known yet."""
    if usage is None:
        return None
    cached = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": cached,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def error_object(error: ServiceError | None) -> dict[str, Any] | None:
    """Return the `error` object of a resource; None if there is no error."""
    if error is None:
        return None
    return {"type": error.kind, "code": error.code, "message": error.message}


def with_final_status(body: bytes, status: Status, error: ServiceError | None = None) -> bytes:
    """Return the JSON of a stored resource with its status and error replaced. `status`:
    `cancelled` or `failed`."""
    resource: dict[str, Any] = orjson.loads(body)
    return orjson.dumps({**resource, "status": status, "error": error_object(error)})
