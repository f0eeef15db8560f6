"""Decodes the `messages` of a chat request into messages of the dialog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.api.codecs.chat.content_parts import decode_content, decode_text
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.refusals import refuse_missing
from penstock.api.schema.chat import request as r
from penstock.base.ids import new_id
from penstock.dialog import Message, Part, Reasoning, Text, ToolCall, ToolResult


class _Calls:
    """Records the tool calls of earlier messages, to match results with calls. A result may give
    the id of its call, only the name of the function, or neither."""

    def __init__(self) -> None:
        self._functions: dict[str, str] = {}
        self._last: dict[str, str] = {}
        self._unanswered: dict[str, None] = {}

    def add(self, call: ToolCall) -> None:
        self._functions[call.id] = call.name
        self._last[call.name] = call.id
        self._unanswered[call.id] = None

    def answered(self, call_id: str) -> str | None:
        """Mark a call as answered and return the name of its function; None for an unknown call."""
        self._unanswered.pop(call_id, None)
        return self._functions.get(call_id)

    def first_unanswered(self) -> str | None:
        """Return the id of the oldest call without a result, to which a result without an id
        belongs."""
        return next(iter(self._unanswered), None)

    def last_of(self, function: str) -> str:
        """Return the id of the last call of a function, or a new id if the function was never
        called."""
        return self._last.get(function) or new_id("call_")


def decode_messages(
    messages: Iterable[r.ChatMessage], part_paths: PartPaths
) -> tuple[Message, ...]:
    """Return the messages of the dialog. The paths of media and files are noted in `part_paths`."""
    calls = _Calls()
    return tuple(
        _message(message, f"messages[{index}]", calls, part_paths)
        for index, message in enumerate(messages)
    )


def _message(message: r.ChatMessage, path: str, calls: _Calls, part_paths: PartPaths) -> Message:
    match message:
        case r.UserMessage():
            content = decode_content(message.content, f"{path}.content", part_paths)
            return Message("user", content, message.name)
        case r.AssistantMessage():
            return Message("assistant", _answer(message, calls), message.name)
        case r.SystemMessage():
            return Message("system", decode_text(message.content), message.name)
        case r.DeveloperMessage():
            return Message("developer", decode_text(message.content), message.name)
        case r.ToolMessage():
            call_id = message.tool_call_id or calls.first_unanswered()
            if call_id is None:
                refuse_missing(f"{path}.tool_call_id", "a string")
            called = calls.answered(call_id)
            parts = decode_content(message.content, f"{path}.content", part_paths)
            text = "".join(part.text for part in parts if isinstance(part, Text))
            result = ToolResult(call_id, text, message.name or called)
            others = (part for part in parts if not isinstance(part, Text))
            return Message("tool", (result, *others), message.name)
        case r.FunctionMessage():
            name, text = message.name, _text(message.content or "")
            return Message("tool", (ToolResult(calls.last_of(name), text, name),), name)


def _answer(message: r.AssistantMessage, calls: _Calls) -> tuple[Part, ...]:
    """Return the reasoning, text, refusal and tool calls of an assistant message, in this order."""
    reasoning = message.reasoning_content or message.reasoning
    made = [_call(call.function, call.id or new_id("call_")) for call in message.tool_calls or ()]
    if message.function_call is not None:
        made.append(_call(message.function_call, new_id("call_")))
    for call in made:
        calls.add(call)
    return (
        *([Reasoning(reasoning)] if reasoning else ()),
        *decode_text(() if message.content is None else message.content),
        *([Text(message.refusal)] if message.refusal else ()),
        *made,
    )


def _call(function: r.FunctionOfCall, call_id: str) -> ToolCall:
    arguments = function.parameters if function.arguments is None else function.arguments
    return ToolCall(call_id, function.name, "{}" if arguments is None else arguments)


def _text(content: str | Sequence[r.TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
