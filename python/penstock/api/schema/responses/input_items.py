"""`POST /v1/responses`: the items of `input`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.chat.request import RefusalPart
from penstock.api.schema.responses.server_tool_items import InputServerToolItem

Detail = Literal["auto", "low", "high", "original"]
AudioFormat = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9]{1,16}$(?!\n)",
        extra={"wanted": "the name of an audio format: wav, mp3"},
    ),
]


class CitedFile(Struct):
    """A cited file, with an optional quote."""

    file_id: str
    quote: str | None = None


class CitedPage(Struct):
    """A cited web page."""

    url: str
    title: str | None = None


class InputAnnotation(Struct):
    """A citation in an earlier answer, in the format of this server or of OpenAI. The model does
    not see citations."""

    type: Annotated[str, Meta(description="file_citation, url_citation, file_path or another.")]
    start_index: f.Count | None = None
    end_index: f.Count | None = None
    index: f.Count | None = None
    text: str | None = None
    file_citation: CitedFile | None = None
    file_path: CitedFile | None = None
    url_citation: CitedPage | None = None
    file_id: str | None = None
    filename: str | None = None
    container_id: str | None = None
    url: str | None = None
    title: str | None = None


class InputText(Struct, tag="input_text", tag_field="type"):
    """Text of the user."""

    text: str
    annotations: list[InputAnnotation] | None = None


class EarlierText(Struct, tag="output_text", tag_field="type"):
    """Text of an earlier answer."""

    text: str
    annotations: list[InputAnnotation] | None = None


class PlainText(Struct, tag="text", tag_field="type"):
    """Text in the chat API's form."""

    text: str
    annotations: list[InputAnnotation] | None = None


class ImageAddress(Struct):
    """An image. `url`: an http(s) or data: URL."""

    url: str
    detail: Detail | None = None


class _ImageFields(Struct, kw_only=True):
    image_url: str | ImageAddress | None = None
    image_data: Annotated[str | None, Meta(description="Base64.")] = None
    file_id: f.Id | None = None
    detail: Detail | None = None


class InputImage(_ImageFields, tag="input_image", tag_field="type", kw_only=True):
    """An image, given by exactly one of `image_url`, `image_data` and `file_id`."""


class ImageUrl(_ImageFields, tag="image_url", tag_field="type", kw_only=True):
    """An image in the chat API's form, given by exactly one of `image_url`, `image_data` and
    `file_id`."""


class AudioData(Struct):
    """Audio. `data`: base64."""

    data: str
    format: AudioFormat


class InputAudio(Struct, tag="input_audio", tag_field="type"):
    """Audio. `data` and `format` may also be nested under `input_audio`, as in the chat API."""

    data: str | None = None
    format: AudioFormat | None = None
    input_audio: AudioData | None = None


class InputFile(Struct, tag="input_file", tag_field="type"):
    """A file, given by exactly one of `file_id`, `file_data` (base64 or a data: URL) and
    `file_url`."""

    file_id: f.Id | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: f.FileName | None = None


InputPart = (
    InputText
    | EarlierText
    | PlainText
    | RefusalPart
    | InputImage
    | ImageUrl
    | InputAudio
    | InputFile
)


class InputMessage(Struct, tag="message", tag_field="type", kw_only=True):
    """A message. `type` may be omitted."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart]
    name: str | None = None
    id: str | None = None
    status: str | None = None


class InputFunctionCall(Struct, tag="function_call", tag_field="type", kw_only=True):
    """A function call that an earlier answer made. `arguments`: JSON text."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class InputFunctionCallOutput(Struct, tag="function_call_output", tag_field="type", kw_only=True):
    """The result of a call of one of the client's functions."""

    call_id: str
    output: str | list[InputPart]
    id: str | None = None
    status: str | None = None


class InputReasoningText(Struct):
    """A text of reasoning or of its summary."""

    text: str
    type: Annotated[str | None, Meta(description="reasoning_text, summary_text or another.")] = None


class InputReasoning(Struct, tag="reasoning", tag_field="type", kw_only=True):
    """Reasoning of an earlier answer. `summary` is used if there is no `content`."""

    content: list[InputReasoningText] | None = None
    summary: list[InputReasoningText] | None = None
    encrypted_content: Annotated[str | None, Meta(description="Of no use here.")] = None
    id: str | None = None
    status: str | None = None


class ItemReference(Struct, tag="item_reference", tag_field="type"):
    """Refers to an output item of a stored response by its id. `type` may be omitted."""

    id: str
    status: str | None = None


InputItem = (
    InputMessage
    | InputFunctionCall
    | InputFunctionCallOutput
    | InputReasoning
    | InputServerToolItem
    | ItemReference
)
# Items whose `type` may be omitted.
UNTAGGED: tuple[Any, ...] = (InputMessage, ItemReference)
