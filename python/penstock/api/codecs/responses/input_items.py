"""Decodes the `input` of a responses request into messages of the dialog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.api.codecs.request_fields.decode_body import decode_value
from penstock.api.codecs.request_fields.namespaces import qualify
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.responses.content_parts import decode_content
from penstock.api.codecs.responses.server_tool_input import decode_server_tool_item
from penstock.api.schema.responses import input_items as i
from penstock.dialog import Message, Part, Reasoning, Text, ToolCall, ToolResult

# Types of input items that are ignored, because no model here reads them: calls and results of
# tools that only OpenAI has, and summaries that only OpenAI can read.
IGNORED: Final = (
    "apply_patch_call",
    "apply_patch_call_output",
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
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
)

Items = Mapping[str, Any]
"""Stored items to which a request refers: id -> JSON object of the item."""


def prepare_input(values: dict[str, Any]) -> None:
    """Give items of `input` without a type their type, and replace items of ignored types with
    empty reasoning, which adds nothing to the conversation. Changes the parsed body in place."""
    items = values.get("input")
    if not isinstance(items, list):
        return
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind is None:
            bare_id = item.keys() - {"type"} == {"id"}
            kind = item["type"] = "item_reference" if bare_id else "message"
        if kind in IGNORED:
            items[index] = {"type": "reasoning"}


def decode_input(
    given: str | Sequence[i.InputItem], known: Items, part_paths: PartPaths
) -> tuple[Message, ...]:
    """Return the messages of one turn. References to items that are not in `known` are left out.
    The paths of media and files are noted in `part_paths`."""
    if isinstance(given, str):
        return (Message("user", (Text(given),)),)
    messages: list[Message] = []
    for index, item in enumerate(given):
        for resolved in _resolved(item, known, f"input[{index}]"):
            _add(messages, resolved, f"input[{index}]", part_paths)
    return tuple(messages)


def references(given: str | Sequence[i.InputItem]) -> tuple[str, ...]:
    """Return the ids of the stored items to which `input` refers, without duplicates."""
    items = () if isinstance(given, str) else given
    return tuple(dict.fromkeys(item.id for item in items if isinstance(item, i.ItemReference)))


def _resolved(item: i.InputItem, known: Items, path: str) -> Iterator[i.InputItem]:
    if not isinstance(item, i.ItemReference):
        yield item
    elif item.id in known:
        stored: i.InputItem = decode_value(known[item.id], i.InputItem, path)
        yield stored


def _add(messages: list[Message], item: i.InputItem, path: str, part_paths: PartPaths) -> None:
    """Add one item to `messages`. Reasoning, text and calls of one assistant turn become one
    message."""
    match item:
        case i.InputFunctionCall():
            name = qualify(item.namespace, item.name)
            _add_to_turn(messages, (ToolCall(item.call_id, name, item.arguments),))
        case i.InputFunctionCallOutput():
            parts = decode_content(item.output, f"{path}.output", part_paths)
            messages.append(_result(item.call_id, parts))
        case i.InputReasoning():
            _add_to_turn(messages, _reasoning(item))
        case i.InputMessage():
            parts = decode_content(item.content, f"{path}.content", part_paths)
            if item.role == "assistant" and item.name is None:
                _add_to_turn(messages, parts)
            else:
                messages.append(Message(item.role, parts, item.name))
        case i.ItemReference():
            raise AssertionError("references are resolved before")
        case _:
            call, result = decode_server_tool_item(item, f"call_{len(messages)}")
            _add_to_turn(messages, (call,) if call is not None else ())
            if result is not None:
                messages.append(result)


def _add_to_turn(messages: list[Message], parts: tuple[Part, ...]) -> None:
    """Add parts of the assistant to its last message, or as a new message if both have text or the
    last message has another role."""
    if not parts:
        return
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or (_speaks(last.parts) and _speaks(parts)):
        messages.append(Message("assistant", parts))
    else:
        messages[-1] = Message("assistant", last.parts + parts, last.name)


def _speaks(parts: tuple[Part, ...]) -> bool:
    return any(isinstance(part, Text) for part in parts)


def _result(call_id: str, parts: tuple[Part, ...]) -> Message:
    """Return a tool message: the texts as one ToolResult, followed by all other parts."""
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    others = tuple(part for part in parts if not isinstance(part, Text))
    return Message("tool", (ToolResult(call_id, text), *others))


def _reasoning(item: i.InputReasoning) -> tuple[Part, ...]:
    """Return the reasoning of an item, or its summary if it has no content. Encrypted content is
    ignored."""
    text = "\n".join(part.text for part in item.content or item.summary or ())
    return (Reasoning(text),) if text else ()
