"""The Responses API: the output items of an answer, and the input items of a stored response."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.schema.chat.answers import TokenLogprobs
from penstock.api.schema.chat.request import RefusalPart
from penstock.api.schema.responses.input_items import CitedFile, CitedPage
from penstock.api.schema.responses.server_tool_items import (
    CodeInterpreterCall,
    ItemStatus,
    McpCall,
    ShellCall,
    ShellCallOutput,
    WebSearchCall,
)


class FileCitation(Struct, tag="file_citation", tag_field="type"):
    """Cites a file as the source of a passage. `start_index`, `end_index`: the passage in the
    text."""

    text: str
    start_index: int
    end_index: int
    file_citation: CitedFile


class UrlCitation(Struct, tag="url_citation", tag_field="type"):
    """Cites a web page as the source of a passage. `start_index`, `end_index`: the passage in the
    text."""

    text: str
    start_index: int
    end_index: int
    url_citation: CitedPage


class FilePath(Struct, tag="file_path", tag_field="type"):
    """Links a file name in the text to the file. `start_index`, `end_index`: the name in the
    text."""

    text: str
    start_index: int
    end_index: int
    file_path: CitedFile


class ContainerFileCitation(Struct, tag="container_file_citation", tag_field="type"):
    """Links a passage of the text to a file that a tool of the server made."""

    file_id: str
    filename: str
    container_id: str
    start_index: int
    end_index: int
    index: int | UnsetType | None = UNSET


Annotation = FileCitation | UrlCitation | FilePath | ContainerFileCitation


class OutputText(Struct, tag="output_text", tag_field="type"):
    """Text of an answer. `logprobs`: one entry per token if the request asks for logprobs, else
    empty."""

    text: str
    annotations: list[Annotation]
    logprobs: list[TokenLogprobs]


class ReasoningText(Struct, tag="reasoning_text", tag_field="type"):
    """Text of the model's reasoning."""

    text: str


class SummaryText(Struct, tag="summary_text", tag_field="type"):
    """A summary of the model's reasoning."""

    text: str


class OutputMessage(Struct, tag="message", tag_field="type"):
    """A message of the model: one text part of one choice."""

    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText | RefusalPart]


class ReasoningItem(Struct, tag="reasoning", tag_field="type"):
    """Reasoning of the model, as one output item."""

    id: str
    status: ItemStatus
    summary: list[SummaryText]
    content: list[ReasoningText]


class FunctionCallItem(Struct, tag="function_call", tag_field="type"):
    """A call of one of the client's functions. `arguments`: JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


OutputItem = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CodeInterpreterCall
    | ShellCall
    | ShellCallOutput
    | WebSearchCall
    | McpCall
)


class StoredOutputText(Struct, tag="output_text", tag_field="type"):
    """Text of an earlier answer."""

    text: str
    annotations: list[Annotation]


class StoredInputText(Struct, tag="input_text", tag_field="type"):
    """Text of the user."""

    text: str


class StoredFile(Struct, tag="input_file", tag_field="type"):
    """A file by id or URL. For a file that was sent inline only the name is kept."""

    file_id: str | None
    filename: str | None
    file_url: str | None


class StoredImage(Struct, tag="input_image", tag_field="type"):
    """An image by URL. For an image that was sent inline, `image_url` is null, or a data: URL with
    `include=message.input_image.image_url`."""

    image_url: str | None
    detail: Literal["auto"]


class StoredAudio(Struct, tag="input_audio", tag_field="type"):
    """Audio or a video by URL; `url` is null if the content was sent inline."""

    url: str | None


StoredPart = StoredOutputText | StoredInputText | StoredFile | StoredImage | StoredAudio


class StoredMessage(Struct, tag="message", tag_field="type"):
    """A message of the stored conversation."""

    id: str
    status: Literal["completed"]
    role: Literal["user", "assistant", "system", "developer"]
    content: list[StoredPart]


class StoredFunctionCallOutput(Struct, tag="function_call_output", tag_field="type"):
    """The result of a call of one of the client's functions."""

    id: str
    status: Literal["completed"]
    call_id: str
    output: str


StoredItem = Annotated[
    StoredMessage | ReasoningItem | FunctionCallItem | StoredFunctionCallOutput,
    Meta(description="An item of the conversation that a response answered."),
]
