"""`messages` of a chat request -> the dialog's messages."""

from __future__ import annotations

from typing import Final, cast

from penstock.api.codecs.chat.content_parts import decode_content, decode_text
from penstock.api.codecs.request_fields.fields import Fields
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.base.ids import new_id
from penstock.dialog import Message, Part, Reasoning, Text, ToolCall, ToolResult
from penstock.dialog.message import Role

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
MAY_BE_EMPTY: Final = (
    "assistant",
    "function",
)  # a call or a refusal stands for content; null is one


class _Calls:
    """The calls that assistants made so far: results name them by id, or by function alone."""

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._unanswered: dict[str, None] = {}

    def add(self, call: ToolCall) -> None:
        self._functions[call.id] = call.name
        self._last[call.name] = call.id
        self._unanswered[call.id] = None

    def answered(self, call_id: str) -> str | None:
        """The function that was called; None for a call that nobody made."""
        self._unanswered.pop(call_id, None)
        return self._functions.get(call_id)

    def first_unanswered(self) -> str | None:
        """The id of the call that a result without one belongs to."""
        return next(iter(self._unanswered), None)

    def last_of(self, function: str) -> str:
        """The id of the last call of a function; a new one where there was none."""
        return self._last.get(function) or new_id("call_")


def decode_messages(
    fields: Fields, part_paths: PartPaths
) -> tuple[tuple[Message, ...] | None, str | None]:
    """(messages, None), or (None, prompt) where `messages` is an already templated string.
    `part_paths`
    learns where media and files are."""
    value = fields.get("messages")
    if value is None:
        fields.refuse_missing("messages", "an array of messages")
    if type(value) is str:
        if not value:
            fields.refuse("messages", "must not be an empty string")
        return None, value
    if type(value) is not list:
        fields.refuse_type("messages", "an array of messages or a string")
    calls = _Calls()
    messages = tuple(_message(entry, calls, part_paths) for entry in fields.objects("messages"))
    if not messages:
        fields.refuse("messages", "must hold at least one message")
    return messages, None


def _message(entry: Fields, calls: _Calls, part_paths: PartPaths) -> Message:
    entry.required_string("role")
    role = entry.choice("role", ROLES)
    name = entry.string("name")
    if role not in MAY_BE_EMPTY and entry.get("content") is None:
        entry.refuse_missing("content", "a string or an array of parts")
    match role:
        case "assistant":
            return Message("assistant", tuple(_said(entry, calls)), name)
        case "tool":
            call_id = entry.string("tool_call_id") or calls.first_unanswered()
            if call_id is None:
                entry.refuse_missing("tool_call_id", "a string")
            called = calls.answered(call_id)
            return Message("tool", (ToolResult(call_id, decode_text(entry), name or called),), name)
        case "function":
            name = entry.required_string("name")
            result = ToolResult(calls.last_of(name), decode_text(entry), name)
            return Message("tool", (result,), name)
        case _:
            of_role = cast("Role", role)
            return Message(of_role, decode_content(entry, of_role, part_paths), name)


def _said(entry: Fields, calls: _Calls) -> list[Part]:
    """What an assistant thought, said and called, in this order."""
    reasoning = entry.string("reasoning_content") or entry.string("reasoning")
    refusal = entry.string("refusal")
    made = [_tool_call(call) for call in entry.objects("tool_calls")]
    legacy = entry.object("function_call")
    if legacy is not None:
        made.append(_call(legacy, new_id("call_")))
    for call in made:
        calls.add(call)
    return [
        *([Reasoning(reasoning)] if reasoning else ()),
        *decode_content(entry, "assistant"),
        *([Text(refusal)] if refusal else ()),
        *made,
    ]


def _tool_call(call: Fields) -> ToolCall:
    call.choice("type", ("function",))
    function = call.required_object("function")
    return _call(function, call.string("id") or new_id("call_"))


def _call(function: Fields, call_id: str) -> ToolCall:
    arguments = function.string("arguments")
    if arguments is None:
        arguments = function.string("parameters")  # the reference's alias
    name = function.required_string("name")
    return ToolCall(call_id, name, arguments if arguments is not None else "{}")
