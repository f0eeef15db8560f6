"""`messages` of a chat request -> the dialog's messages."""

from __future__ import annotations

from typing import Final

from penstock.api.codecs.fields import Fields, shown
from penstock.base.ids import new_id
from penstock.dialog import Message, Part, Reasoning, Text, ToolCall, ToolResult

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
# Parts that a text model cannot read; named so that the refusal can say so.
MEDIA_PARTS: Final = ("image_url", "audio_url", "input_audio", "video_url", "file", "file_url")


def decode_messages(fields: Fields) -> tuple[tuple[Message, ...] | None, str | None]:
    """(messages, None), or (None, prompt) where `messages` is an already templated string."""
    value = fields.get("messages")
    if value is None:
        fields.refuse_missing("messages", "an array of messages")
    if type(value) is str:
        if not value:
            fields.refuse("messages", "must not be an empty string")
        return None, value
    if type(value) is not list:
        fields.refuse_type("messages", "an array of messages or a string")
    messages = tuple(_message(entry) for entry in fields.objects("messages"))
    if not messages:
        fields.refuse("messages", "must hold at least one message")
    return messages, None


def _message(entry: Fields) -> Message:
    entry.required_string("role")
    role = entry.choice("role", ROLES)
    name = entry.string("name")
    content = _content(entry)
    match role:
        case "assistant":
            parts = (*_reasoning(entry), *content, *_tool_calls(entry))
            return Message("assistant", parts, name)
        case "tool":
            call_id = entry.required_string("tool_call_id")
            text = "".join(part.text for part in content)
            return Message("tool", (ToolResult(call_id, text, name),), name)
        case "system" | "developer" | "user":
            return Message(role, content, name)
        case _:
            raise AssertionError(role)


def _content(entry: Fields) -> tuple[Text, ...]:
    """A string, null, or an array of text parts."""
    value = entry.get("content")
    if value is None:
        return ()
    if type(value) is str:
        return (Text(value),)
    if type(value) is not list:
        entry.refuse_type("content", "a string, null or an array of parts")
    return tuple(_text_part(part) for part in entry.objects("content"))


def _text_part(part: Fields) -> Text:
    kind = part.required_string("type")
    if kind in MEDIA_PARTS:
        part.refuse(
            "type",
            f"{shown(kind)} cannot be used: the model reads text only",
            code="unsupported_value",
        )
    part.choice("type", ("text",))
    return Text(part.required_string("text"))


def _reasoning(entry: Fields) -> tuple[Part, ...]:
    text = entry.string("reasoning_content") or entry.string("reasoning")
    return (Reasoning(text),) if text else ()


def _tool_calls(entry: Fields) -> tuple[Part, ...]:
    return tuple(_tool_call(call) for call in entry.objects("tool_calls"))


def _tool_call(call: Fields) -> ToolCall:
    call.choice("type", ("function",))
    function = call.required_object("function")
    arguments = function.string("arguments")
    if arguments is None:
        arguments = function.string("parameters")  # the reference's alias
    return ToolCall(
        id=call.string("id") or new_id("call_"),
        name=function.required_string("name"),
        arguments=arguments if arguments is not None else "{}",
    )
