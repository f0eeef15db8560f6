"""`POST /v1/chat/completions`: the request."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.constraints import Adapter, Permission
from penstock.api.schema.hosted import CodeInterpreterTool, RequestedFiles, WebSearchOptions
from penstock.api.schema.sampling import AnswerFields
from penstock.api.schema.tools import Function, FunctionName, FunctionTool, ToolChoice

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]
Effort = Annotated[
    str, Meta(description="off, none, low, medium, high, xhigh or max; in any case of letters.")
]


class TextPart(Struct, tag="text", tag_field="type"):
    """Text of a message."""

    text: str


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """What the assistant refused with."""

    refusal: str


class ChatImage(Struct):
    """An image by its URL, http(s) or data."""

    url: str
    detail: f.Ignored = None


class MediaAddress(Struct):
    """Sound or a video by its URL, http(s) or data."""

    url: str


class ChatAudio(Struct):
    """Sound in base64."""

    data: str
    format: Annotated[str, Meta(min_length=1, description="wav, mp3 or another.")]


class ChatFile(Struct):
    """A stored file by its id; or one with its content, base64 or a data: URL."""

    file_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    filename: Annotated[str, Meta(max_length=255)] | None = None
    file_data: str | None = None
    file_url: f.Absent = None


class ImagePart(Struct, tag="image_url", tag_field="type"):
    """An image, by its URL."""

    image_url: str | ChatImage


class AudioPart(Struct, tag="audio_url", tag_field="type"):
    """Audio, by its URL."""

    audio_url: str | MediaAddress


class InputAudioPart(Struct, tag="input_audio", tag_field="type"):
    """Audio, in base64."""

    input_audio: ChatAudio


class VideoPart(Struct, tag="video_url", tag_field="type"):
    """A video, by its URL."""

    video_url: str | MediaAddress


class FilePart(Struct, tag="file", tag_field="type"):
    """A file, by its id or with its content."""

    file: ChatFile


Part = TextPart | RefusalPart | ImagePart | AudioPart | InputAudioPart | VideoPart | FilePart


class FunctionOfCall(Struct):
    """A function and its arguments, as JSON text; `parameters` is the same as `arguments`."""

    name: str
    arguments: str | None = None
    parameters: str | None = None


class CallOfAssistant(Struct):
    """A call of an earlier answer."""

    function: FunctionOfCall
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(Struct):
    """A message. `content` may be absent for the roles assistant and function. `tool_call_id`
    belongs to the role tool, `tool_calls` and `reasoning_content` to the assistant."""

    role: Role
    content: str | list[Part] | None = None
    refusal: str | None = None
    function_call: FunctionOfCall | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[CallOfAssistant] | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, Meta(description="The same as `reasoning_content`.")] = None


class ChatTemplateArguments(Struct):
    """The same as the fields of these names outside."""

    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None


class ChatCompletionRequest(AnswerFields, kw_only=True):
    """A chat to be continued."""

    messages: Annotated[
        Annotated[list[ChatMessage], Meta(min_length=1)] | f.NonEmpty,
        Meta(description="Messages; or an already templated prompt, as a string."),
    ]
    model: f.Model | None = None
    stream: bool | None = None
    max_tokens: f.MaxTokens | None = None
    max_completion_tokens: f.MaxTokens | None = None
    n: f.Choices | None = None
    stop: f.Stop | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[f.TopLogprobs | None, Meta(description="Needs `logprobs`.")] = None
    tools: list[FunctionTool | CodeInterpreterTool] | None = None
    tool_choice: ToolChoice | None = None
    functions: Annotated[list[Function] | None, Meta(description="The older form of `tools`.")] = (
        None
    )
    function_call: Annotated[
        Literal["auto", "none"] | FunctionName | None,
        Meta(description="The older form of `tool_choice`."),
    ] = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: ChatTemplateArguments | None = None
    continue_final_message: Annotated[
        bool | None, Meta(description="The answer goes on from a last message of the assistant.")
    ] = None
    truncate_sequence: f.Truncate | None = None
    max_tool_rounds: f.MaxRounds | None = None
    adapter: Adapter | None = None
    agent_permission: Annotated[Permission | None, Meta(description="`ask` needs `stream`.")] = None
    code_execution_permission: Permission | None = None
    web_search_options: WebSearchOptions | None = None
    session_id: Annotated[str, Meta(max_length=256)] | None = None
    files: RequestedFiles | None = None
    enable_shell: bool | None = None
    user: f.Ignored = None
    stream_options: f.Ignored = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    parallel_tool_calls: f.Ignored = None
    store: f.Ignored = None
