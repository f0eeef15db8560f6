"""The responses interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.wire import fields as f
from penstock.api.wire.constraints import Adapter, Grammar
from penstock.api.wire.sampling import SamplingFields

Status = Literal["queued", "in_progress", "completed", "failed", "incomplete", "cancelled"]


class OpenResponsesCreateRequest(SamplingFields, kw_only=True):
    """A turn to be answered. `tools`, `tool_choice`, `text` and the items of `input` have the
    vendor's forms."""

    input: Annotated[
        str | list[dict[str, Any]], Meta(description="A text, or messages and other items.")
    ]
    model: f.Model | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: f.MaxTokens | None = None
    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    stop: f.Stop | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    ignore_eos: bool | None = None
    max_tool_rounds: f.MaxRounds | None = None
    grammar: Grammar | None = None
    adapter: Adapter | None = None
    metadata: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class ResponseResource(Struct):
    """A response, with the fields of its request that are echoed."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    model: str
    output: list[dict[str, Any]]


class ResponseDeleted(Struct):
    """The response is gone."""

    id: str
    object: Literal["response.deleted"]
    deleted: bool


class ItemList(Struct):
    """The items of a request."""

    object: Literal["list"]
    data: list[dict[str, Any]]


class ResponseEvent(Struct):
    """One named event; `type` is its name. Exactly one terminal event ends a stream."""

    type: str
    sequence_number: int
