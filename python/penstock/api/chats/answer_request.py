"""Builds the request to the model for an answer in a chat from the messages of its branch and the
settings of the chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import orjson

from penstock.api.codecs.chat.decode import decode
from penstock.api.codecs.request_fields.openai_compat import OpenAICompat
from penstock.api.schema.chats import AttachmentBlock, Block, TextBlock, ToolBlock
from penstock.base.errors import InvalidRequest
from penstock.dialog import (
    Audio,
    File,
    GenerateRequest,
    Image,
    Message,
    Part,
    PythonTool,
    SearchTool,
    ShellTool,
    Text,
    ToolCall,
    ToolResult,
    Video,
)
from penstock.dialog.request import HostedTool

if TYPE_CHECKING:
    from penstock.api.models.model_catalog import ModelCatalog

# Fields of a chat completion request that the settings of a chat may have.
REQUEST_FIELDS: Final = frozenset(
    (
        *("model", "adapter", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"),
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop", "logit_bias"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_sequence_breakers"),
        *("min_tokens",),
        *("enable_thinking", "reasoning_effort", "grammar", "response_format"),
        *("logprobs", "top_logprobs", "agent_permission", "max_tool_rounds"),
    )
)
# Settings that are no fields of chat completion requests. The page sends `voice` to the speech
# endpoint and `image_size` ("width x height" in pixels) to the image endpoint.
TEXT_FIELDS: Final = ("system", "voice", "image_size")
PAGE_FIELDS: Final = frozenset((*TEXT_FIELDS, "tools"))
HOSTED: Final[Mapping[str, HostedTool]] = {
    "search": SearchTool(),
    "code": PythonTool(),
    "shell": ShellTool(),
}
_MEDIA: Final[Mapping[str, type[Image | Audio | Video]]] = {
    "image": Image,
    "audio": Audio,
    "video": Video,
}
_PLACEHOLDER: Final = [{"role": "user", "content": "."}]


class ReadAttachment(Protocol):
    """Returns the content of an attachment. Raises NotFound."""

    async def __call__(self, id: str, /) -> bytes: ...


def decode_settings(
    settings: Mapping[str, Any], models: ModelCatalog, compat: OpenAICompat
) -> GenerateRequest:
    """Return a request with the settings of a chat and without messages. Raises InvalidRequest,
    which names the wrong field, and NotFound for an unknown model."""
    unknown = sorted(set(settings) - REQUEST_FIELDS - PAGE_FIELDS)
    if unknown:
        raise InvalidRequest(
            f"`settings.{unknown[0]}` is not a setting of a chat", field=f"settings.{unknown[0]}"
        )
    for name in TEXT_FIELDS:
        _check_text(name, settings.get(name))
    fields = {name: value for name, value in settings.items() if name in REQUEST_FIELDS}
    body = orjson.dumps({**fields, "messages": _PLACEHOLDER, "stream": True})
    request = decode(body, compat).request
    selection = models.select(request.model)
    adapter = request.adapter if selection.adapter is None else selection.adapter
    return msgspec.structs.replace(
        request,
        messages=(),
        model=selection.model,
        adapter=adapter,
        hosted=_hosted(settings.get("tools")),
        streamed=True,
    )


async def with_messages(
    request: GenerateRequest,
    system: str | None,
    branch: Sequence[tuple[str, Sequence[Block]]],
    read: ReadAttachment,
) -> GenerateRequest:
    """Return the request with its messages.

    `system`: the text of the system message.
    `branch`: (role, blocks) of each message from the root.

    Raises NotFound for a missing attachment.
    """
    messages = [Message("system", (Text(system),))] if system else []
    for role, blocks in branch:
        if role == "user":
            messages.append(Message("user", await _user_parts(blocks, read)))
        else:
            messages += _answer_messages(blocks)
    return msgspec.structs.replace(request, messages=tuple(messages))


def with_continued_answer(request: GenerateRequest) -> GenerateRequest:
    """Return the request with the text at the end of its last message as the start of the answer.
    Raises InvalidRequest if the last message does not end with text."""
    *before, last = request.messages or ()
    end = last.parts[-1] if last.role == "assistant" and last.parts else None
    if not isinstance(end, Text) or not end.text:
        raise InvalidRequest(
            "only an answer that ends with text can be continued", code="cannot_continue"
        )
    kept = last.parts[:-1]
    messages = (*before, Message("assistant", kept)) if kept else tuple(before)
    reasoning = msgspec.structs.replace(request.reasoning, enabled=False)
    return msgspec.structs.replace(
        request, messages=messages, answer_prefix=end.text, reasoning=reasoning
    )


def _check_text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise InvalidRequest(f"`settings.{name}` must be a text", field=f"settings.{name}")


def _hosted(tools: object) -> tuple[HostedTool, ...]:
    """Return the tools that the settings switch on. Raises InvalidRequest."""
    if tools is None:
        return ()
    wanted = f"`settings.tools` must have the fields {', '.join(HOSTED)}: true or false"
    if not isinstance(tools, dict) or not set(tools) <= set(HOSTED):
        raise InvalidRequest(wanted, field="settings.tools")
    if not all(isinstance(on, bool) for on in tools.values()):
        raise InvalidRequest(wanted, field="settings.tools")
    return tuple(tool for name, tool in HOSTED.items() if tools.get(name))


async def _user_parts(blocks: Sequence[Block], read: ReadAttachment) -> tuple[Part, ...]:
    parts: list[Part] = []
    for block in blocks:
        match block:
            case TextBlock():
                parts.append(Text(block.text))
            case AttachmentBlock(attachment=attached):
                data = await read(attached.id)
                media = _MEDIA.get(attached.mime_type.partition("/")[0])
                if media is not None:
                    parts.append(media(data=data, mime_type=attached.mime_type))
                else:
                    name, mime_type = attached.name, attached.mime_type
                    parts.append(File(name=name, data=data, mime_type=mime_type))
            case _:
                pass
    return tuple(parts)


def _answer_messages(blocks: Sequence[Block]) -> list[Message]:
    """Return the messages of an answer: its texts, and its tool calls with their results. Reasoning
    is left out, as chat templates expect."""
    messages: list[Message] = []
    said: list[Part] = []
    results: list[Message] = []
    for block in blocks:
        match block:
            case TextBlock() if block.text:
                if results:
                    messages += [Message("assistant", tuple(said)), *results]
                    said, results = [], []
                said.append(Text(block.text))
            case ToolBlock() if block.state != "running":
                said.append(ToolCall(block.call_id, block.name, block.arguments))
                result = ToolResult(block.call_id, block.output, block.name)
                results.append(Message("tool", (result,)))
            case _:
                pass
    if said:
        messages.append(Message("assistant", tuple(said)))
    return [*messages, *results]
