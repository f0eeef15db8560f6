"""The Responses API: the events of a stream. Their `type` is their name."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.schema.agent import AgenticToolCallProgress
from penstock.api.schema.chat.answers import TokenLogprobs
from penstock.api.schema.chat.request import RefusalPart
from penstock.api.schema.responses.output_items import (
    Annotation,
    OutputItem,
    OutputText,
    ReasoningText,
)
from penstock.api.schema.responses.request_and_resource import ResponseResource

ContentPart = OutputText | RefusalPart | ReasoningText


class _Event(Struct, tag_field="type", kw_only=True):
    sequence_number: int


class _Lifecycle(_Event, kw_only=True):
    response: ResponseResource


class ResponseCreated(_Lifecycle, tag="response.created", kw_only=True):
    """The first event."""


class ResponseQueued(_Lifecycle, tag="response.queued", kw_only=True):
    """The second event of a background response."""


class ResponseInProgress(_Lifecycle, tag="response.in_progress", kw_only=True):
    """The work has begun."""


class ResponseCompleted(_Lifecycle, tag="response.completed", kw_only=True):
    """The last event of a run that finished."""


class ResponseIncomplete(_Lifecycle, tag="response.incomplete", kw_only=True):
    """The last event of a run that stopped early."""


class ResponseFailed(_Lifecycle, tag="response.failed", kw_only=True):
    """The last event of a run that failed; `error` precedes it."""


class _ItemEvent(_Event, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(_ItemEvent, tag="response.output_item.added", kw_only=True):
    """An item begins; it is empty."""


class OutputItemDone(_ItemEvent, tag="response.output_item.done", kw_only=True):
    """An item ends."""


class _InItem(_Event, kw_only=True):
    item_id: str
    output_index: int


class _InPart(_InItem, kw_only=True):
    content_index: int


class ContentPartAdded(_InPart, tag="response.content_part.added", kw_only=True):
    """A part of an item begins; it is empty."""

    part: ContentPart


class ContentPartDone(_InPart, tag="response.content_part.done", kw_only=True):
    """A part of an item ends."""

    part: ContentPart


class OutputTextDelta(_InPart, tag="response.output_text.delta", kw_only=True):
    """A piece of text, with its tokens if they were asked for."""

    delta: str
    logprobs: list[TokenLogprobs]


class OutputTextDone(_InPart, tag="response.output_text.done", kw_only=True):
    """The text of a part."""

    text: str
    logprobs: list[TokenLogprobs]


class OutputTextAnnotationAdded(_InPart, tag="response.output_text.annotation.added", kw_only=True):
    """Something that the text cites."""

    annotation_index: int
    annotation: Annotation


class ReasoningTextDelta(_InPart, tag="response.reasoning_text.delta", kw_only=True):
    """A piece of reasoning."""

    delta: str


class ReasoningTextDone(_InPart, tag="response.reasoning_text.done", kw_only=True):
    """The reasoning of a part."""

    text: str


class FunctionCallArgumentsDelta(
    _InItem, tag="response.function_call_arguments.delta", kw_only=True
):
    """A piece of a call's arguments, which are JSON text."""

    call_id: str
    delta: str


class FunctionCallArgumentsDone(_InItem, tag="response.function_call_arguments.done", kw_only=True):
    """The arguments of a call."""

    call_id: str
    name: str
    arguments: str


class ResponseErrorEvent(_Event, tag="error", kw_only=True):
    """An error. `param` names the field at fault."""

    code: str
    message: str
    param: str | None


ResponseStreamEvent = (
    ResponseCreated
    | ResponseQueued
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | OutputTextDelta
    | OutputTextDone
    | OutputTextAnnotationAdded
    | ReasoningTextDelta
    | ReasoningTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | ResponseErrorEvent
    | AgenticToolCallProgress
)
