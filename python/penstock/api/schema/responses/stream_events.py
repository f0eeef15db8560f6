"""The Responses API: the events of a stream. The field `type` holds an event's name."""

from __future__ import annotations

from penstock.api.schema.chat.answers import TokenLogprobs
from penstock.api.schema.chat.request import RefusalPart
from penstock.api.schema.responses.output_items import (
    Annotation,
    OutputItem,
    OutputText,
    ReasoningText,
)
from penstock.api.schema.responses.request_and_resource import ResponseResource
from penstock.api.schema.responses.server_tool_events import (
    InItem,
    NumberedEvent,
    ServerToolEvent,
)

ContentPart = OutputText | RefusalPart | ReasoningText


class _Lifecycle(NumberedEvent, kw_only=True):
    response: ResponseResource


class ResponseCreated(_Lifecycle, tag="response.created", kw_only=True):
    """The first event of a stream."""


class ResponseQueued(_Lifecycle, tag="response.queued", kw_only=True):
    """The second event of a background response."""


class ResponseInProgress(_Lifecycle, tag="response.in_progress", kw_only=True):
    """Event: generation has started."""


class ResponseCompleted(_Lifecycle, tag="response.completed", kw_only=True):
    """The last event of a response that completed."""


class ResponseIncomplete(_Lifecycle, tag="response.incomplete", kw_only=True):
    """The last event of a response that was cut off or cancelled."""


class ResponseFailed(_Lifecycle, tag="response.failed", kw_only=True):
    """The last event of a response that failed; follows the event `error`."""


class _ItemEvent(NumberedEvent, kw_only=True):
    output_index: int
    item: OutputItem


class OutputItemAdded(_ItemEvent, tag="response.output_item.added", kw_only=True):
    """Event: an output item begins. `item` is still empty."""


class OutputItemDone(_ItemEvent, tag="response.output_item.done", kw_only=True):
    """Event: an output item has ended. `item` is final."""


class _InPart(InItem, kw_only=True):
    content_index: int


class ContentPartAdded(_InPart, tag="response.content_part.added", kw_only=True):
    """Event: a content part of an item begins. `part` is still empty."""

    part: ContentPart


class ContentPartDone(_InPart, tag="response.content_part.done", kw_only=True):
    """Event: a content part has ended. `part` is final."""

    part: ContentPart


class OutputTextDelta(_InPart, tag="response.output_text.delta", kw_only=True):
    """Event: the next piece of text. `logprobs`: one entry per token of the piece if the request
    asks for logprobs, else empty."""

    delta: str
    logprobs: list[TokenLogprobs]


class OutputTextDone(_InPart, tag="response.output_text.done", kw_only=True):
    """Event: a text part has ended. `text`: the whole text."""

    text: str
    logprobs: list[TokenLogprobs]


class OutputTextAnnotationAdded(_InPart, tag="response.output_text.annotation.added", kw_only=True):
    """Event: the text has a new citation."""

    annotation_index: int
    annotation: Annotation


class ReasoningTextDelta(_InPart, tag="response.reasoning_text.delta", kw_only=True):
    """Event: the next piece of reasoning."""

    delta: str


class ReasoningTextDone(_InPart, tag="response.reasoning_text.done", kw_only=True):
    """Event: a reasoning part has ended. `text`: the whole reasoning."""

    text: str


class FunctionCallArgumentsDelta(
    InItem, tag="response.function_call_arguments.delta", kw_only=True
):
    """Event: the next piece of a call's arguments, as JSON text."""

    call_id: str
    delta: str


class FunctionCallArgumentsDone(InItem, tag="response.function_call_arguments.done", kw_only=True):
    """Event: a call's arguments are complete. `arguments`: the whole JSON text."""

    call_id: str
    name: str
    arguments: str


class ResponseErrorEvent(NumberedEvent, tag="error", kw_only=True):
    """Event: the response failed. `param`: the wrong field of the request, if any."""

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
    | ServerToolEvent
    | ResponseErrorEvent
)
