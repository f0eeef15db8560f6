"""The second vendor's messages interface."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.wire import fields as f
from penstock.api.wire.sampling import SamplingFields


class MessagesRequest(SamplingFields, kw_only=True):
    """A chat to be continued. Blocks, tools and `tool_choice` have the vendor's forms."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: f.Model | None = None
    system: str | list[dict[str, Any]] | None = None
    max_tokens: f.MaxTokens | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    metadata: f.Ignored = None


class MessageResponse(Struct):
    """The finished answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[dict[str, Any]]
    model: str
    stop_reason: str | None
    usage: dict[str, Any]


class CountTokensResponse(Struct):
    """How long the prompt is."""

    input_tokens: int


class MessageEvent(Struct):
    """One named event; `type` is its name."""

    type: str


class MessagesErrorBody(Struct):
    """What was wrong."""

    type: str
    message: str


class MessagesError(Struct):
    """Every error of these routes."""

    type: Literal["error"]
    error: MessagesErrorBody
    request_id: str | None = None
