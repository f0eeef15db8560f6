"""`input` of a responses request -> the dialog's messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from penstock.api.codecs.request_fields.fields import Fields
from penstock.api.codecs.request_fields.namespaces import qualify
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.responses.content_parts import decode_content
from penstock.dialog import Message, Part, Reasoning, Text, ToolCall, ToolResult
from penstock.dialog.message import Role

ROLES: Final = ("user", "assistant", "system", "developer")
ITEMS: Final = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
# What turns of OpenAI's models leave in a conversation, and no model here reads: calls of tools
# that OpenAI runs, their results, and summaries that only OpenAI can read.
IGNORED: Final = (
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)

Items = Mapping[str, Any]
"""Stored items that a request refers to: id -> the item's JSON object."""


def decode_input(fields: Fields, known: Items, part_paths: PartPaths) -> tuple[Message, ...]:
    """The messages of one turn. References to items that are not `known` are left out. `part_paths`
    learns where their parts are."""
    value = fields.get("input")
    if value is None:
        fields.refuse_missing("input", "a string or an array of items")
    if type(value) is str:
        if not value:
            fields.refuse("input", "must not be an empty string")
        return (Message("user", (Text(value),)),)
    if type(value) is not list:
        fields.refuse_type("input", "a string or an array of items")
    if not value:
        fields.refuse("input", "must hold at least one item")
    messages: list[Message] = []
    for entry in fields.objects("input"):
        for item in _resolved(entry, known):
            _add(messages, item, part_paths)
    return tuple(messages)


def references(fields: Fields) -> tuple[str, ...]:
    """The ids of the items that `input` refers to."""
    if type(fields.get("input")) is not list:
        return ()
    entries = [entry for entry in fields.objects("input") if _kind(entry) == "item_reference"]
    return tuple(dict.fromkeys(entry.required_string("id") for entry in entries))


def _kind(item: Fields) -> str:
    """`type`, which a message and a reference may leave out."""
    kind = item.string("type")
    if kind in IGNORED:
        return kind
    kind = item.choice("type", ITEMS)
    if kind is None:
        kind = "item_reference" if set(item.values) == {"id"} else "message"
    return kind


def _resolved(item: Fields, known: Items) -> Iterator[Fields]:
    if _kind(item) != "item_reference":
        yield item
        return
    stored = known.get(item.required_string("id"))
    if stored is not None:
        yield Fields(stored, item.path)


def _add(messages: list[Message], item: Fields, part_paths: PartPaths) -> None:
    """One item. What the assistant does in one turn (thinks, says, calls) is one message."""
    item.string("id")
    item.string("status")
    match _kind(item):
        case "function_call":
            _add_to_turn(messages, (_call(item),))
        case "function_call_output":
            messages.append(_result(item, part_paths))
        case "reasoning":
            _add_to_turn(messages, _reasoning(item))
        case kind if kind in IGNORED:
            pass
        case _:
            _add_message(messages, item, part_paths)


def _add_message(messages: list[Message], item: Fields, part_paths: PartPaths) -> None:
    item.required_string("role")
    role = item.choice("role", ROLES)
    name = item.string("name")
    parts = decode_content(item, "content", part_paths)
    if role == "assistant" and name is None:
        _add_to_turn(messages, parts)
        return
    messages.append(Message(cast("Role", role), parts, name))


def _add_to_turn(messages: list[Message], parts: tuple[Part, ...]) -> None:
    """Join the assistant's last message, unless both have said something."""
    if not parts:
        return
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (_speaks(last.parts) and _speaks(parts)):
        messages.append(Message("assistant", parts))
    else:
        messages[-1] = Message("assistant", last.parts + parts, last.name)


def _speaks(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, Text) for part in parts)


def _call(item: Fields) -> ToolCall:
    call_id, name = item.required_string("call_id"), item.required_string("name")
    name = qualify(item.string("namespace"), name)
    return ToolCall(call_id, name, item.required_string("arguments"))


def _result(item: Fields, part_paths: PartPaths) -> Message:
    """Texts are the result; other parts stand beside it."""
    call_id = item.required_string("call_id")
    parts = decode_content(item, "output", part_paths)
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    others = tuple(part for part in parts if not isinstance(part, Text))
    return Message("tool", (ToolResult(call_id, text), *others))


def _reasoning(item: Fields) -> tuple[Part, ...]:
    """What was thought, else its summary. Encrypted content is of no use here."""
    item.string("encrypted_content")
    thoughts = [part.required_string("text") for part in item.objects("content")]
    summary = [part.required_string("text") for part in item.objects("summary")]
    text = "\n".join(thoughts or summary)
    return (Reasoning(text),) if text else ()
