"""`POST /v1/chat/completions`: the request."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from penstock.api.schema import fields as f
from penstock.api.schema.conversation import ConversationFields
from penstock.api.schema.hosted import CodeInterpreterTool
from penstock.api.schema.tools import Function, FunctionName, FunctionTool, ToolChoice


class TextPart(Struct, tag="text", tag_field="type"):
    """A text part of a message."""

    text: str


class RefusalPart(Struct, tag="refusal", tag_field="type"):
    """The text with which the assistant refused a request."""

    refusal: str


class ChatImage(Struct):
    """An image. `url`: an http(s) or data: URL."""

    url: str
    detail: f.Ignored = None


class MediaAddress(Struct):
    """Audio or video. `url`: an http(s) or data: URL."""

    url: str


class ChatAudio(Struct):
    """Audio. `data`: base64."""

    data: str
    format: Annotated[str, Meta(min_length=1, description="wav, mp3 or another.")]


class ChatFile(Struct):
    """A file: either `file_id` of a stored file, or its content in `file_data` (base64 or a data:
    URL)."""

    file_id: f.Id | None = None
    filename: f.FileName | None = None
    file_data: str | None = None
    file_url: Annotated[
        None,
        f.refused("is not supported on chat completions; send `file_data` or `file_id`"),
    ] = None


class ImagePart(Struct, tag="image_url", tag_field="type"):
    """An image part. A string is the URL."""

    image_url: str | ChatImage


class AudioPart(Struct, tag="audio_url", tag_field="type"):
    """An audio part. A string is the URL."""

    audio_url: str | MediaAddress


class InputAudioPart(Struct, tag="input_audio", tag_field="type"):
    """An audio part with its content in base64."""

    input_audio: ChatAudio


class VideoPart(Struct, tag="video_url", tag_field="type"):
    """A video part. A string is the URL."""

    video_url: str | MediaAddress


class FilePart(Struct, tag="file", tag_field="type"):
    """A file part: a stored file by id, or a file with its content."""

    file: ChatFile


_ONLY_THESE = Meta(extra={"code": f.UNSUPPORTED})
UserPart = Annotated[
    TextPart | ImagePart | AudioPart | InputAudioPart | VideoPart | FilePart,
    Meta(
        extra={
            "code": f.UNSUPPORTED,
            "hint": "a file is sent as `file`, with `file_data` or `file_id`",
        }
    ),
]
AssistantPart = Annotated[TextPart | RefusalPart, _ONLY_THESE]
Part = TextPart | RefusalPart | ImagePart | AudioPart | InputAudioPart | VideoPart | FilePart
TextContent = str | list[Annotated[TextPart, _ONLY_THESE]]


class FunctionOfCall(Struct):
    """A called function and its arguments as JSON text. `parameters` is another name of
    `arguments`."""

    name: str
    arguments: str | None = None
    parameters: str | None = None


class CallOfAssistant(Struct):
    """A tool call that an earlier answer made."""

    function: FunctionOfCall
    id: str | None = None
    type: Literal["function"] | None = None


class _Message(Struct, tag_field="role", kw_only=True):
    name: str | None = None


class SystemMessage(_Message, tag="system", kw_only=True):
    """Instructions for the model."""

    content: TextContent


class DeveloperMessage(_Message, tag="developer", kw_only=True):
    """Instructions for the model, under the newer name of the role `system`."""

    content: TextContent


class UserMessage(_Message, tag="user", kw_only=True):
    """A message of the user, which may contain media and files."""

    content: str | list[UserPart]


class AssistantMessage(_Message, tag="assistant", kw_only=True):
    """An earlier answer. `content` may be absent if there is a call or a refusal."""

    content: str | list[AssistantPart] | None = None
    refusal: str | None = None
    function_call: FunctionOfCall | None = None
    tool_calls: list[CallOfAssistant] | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, Meta(description="The same as `reasoning_content`.")] = None


class ToolMessage(_Message, tag="tool", kw_only=True):
    """The result of a tool call, which may contain media and files. Without `tool_call_id`, the
    message answers the first call that has no result yet."""

    content: str | list[UserPart]
    tool_call_id: str | None = None


class FunctionMessage(Struct, tag="function", tag_field="role", kw_only=True):
    """The result of a `function_call`, which older clients send instead of the role `tool`."""

    name: str
    content: TextContent | None = None


ChatMessage = (
    SystemMessage
    | DeveloperMessage
    | UserMessage
    | AssistantMessage
    | ToolMessage
    | FunctionMessage
)


class ChatCompletionRequest(ConversationFields, kw_only=True):
    """A conversation, to which the model writes the next answer."""

    messages: Annotated[
        Annotated[list[ChatMessage], Meta(min_length=1)] | f.NonEmpty,
        Meta(description="Messages; or an already templated prompt, as a string."),
    ]
    n: f.Choices | None = None
    stop: f.Stop | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[f.TopLogprobs | None, Meta(description="Needs `logprobs`.")] = None
    tools: (
        list[
            Annotated[
                FunctionTool | CodeInterpreterTool,
                Meta(
                    extra={
                        "code": f.UNSUPPORTED,
                        "hint": "web search is asked for by `web_search_options`, a shell by"
                        " `enable_shell`",
                    }
                ),
            ]
        ]
        | None
    ) = None
    tool_choice: ToolChoice | None = None
    functions: Annotated[list[Function] | None, Meta(description="The older form of `tools`.")] = (
        None
    )
    function_call: Annotated[
        Literal["auto", "none"] | FunctionName | None,
        Meta(description="The older form of `tool_choice`."),
    ] = None
    continue_final_message: Annotated[
        bool | None, Meta(description="The answer continues the assistant's last message.")
    ] = None
    enable_shell: bool | None = None
    user: f.Ignored = None
    stream_options: f.Ignored = None
    metadata: f.Ignored = None
    service_tier: f.Ignored = None
    parallel_tool_calls: f.Ignored = None
    store: f.Ignored = None
