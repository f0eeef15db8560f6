"""`system` and `messages`: content blocks -> the dialog's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import orjson

from penstock.api.codecs.request_fields.fields import Fields, one_of, shown
from penstock.api.codecs.request_fields.media import (
    MAX_FILE_NAME_CHARS,
    base_name,
    decode_address,
    decode_data,
    decode_file_id,
    decode_source,
)
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.dialog import (
    File,
    Image,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from penstock.dialog.message import Role

ROLES: Final = ("user", "assistant", "system")
# What an answer of Anthropic may hold and a client sends back, and no model here reads: results of
# tools that Anthropic runs, reasoning that only Anthropic can read.
IGNORED: Final = ("redacted_thinking", "server_tool_use", "mcp_tool_use", "compaction", "fallback")
IGNORED_SUFFIX: Final = "_tool_result"
ALLOWED: Final[dict[Role, tuple[str, ...]]] = {
    "user": ("text", "image", "document", "search_result", "tool_result", "container_upload"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
IN_RESULTS: Final = ("text", "image", "document", "search_result", "tool_reference")
IN_DOCUMENTS: Final = ("text", "image")
# Anthropic's coding agent begins `system` with this, and a value that every conversation has anew:
# no prefix behind it would ever be found in the cache.
BILLING: Final = "x-anthropic-billing-header:"
NO_OUTPUT: Final = "The call failed."
PDF: Final = "application/pdf"


def decode_system(fields: Fields) -> tuple[Message, ...]:
    """`system`: a string or an array of text blocks, less what is no instruction."""
    blocks = _content(fields, "system", ALLOWED["system"], {})
    parts = tuple(p for p in blocks if not (isinstance(p, Text) and p.text.startswith(BILLING)))
    return (Message("system", parts),) if parts else ()


def decode_messages(fields: Fields, part_paths: PartPaths) -> tuple[Message, ...]:
    """Messages of one role that follow each other are one turn. `part_paths` learns where their
    parts
    are."""
    if fields.get("messages") is None:
        fields.refuse_missing("messages", "an array of messages")
    functions: dict[str, str] = {}
    messages: list[Message] = []
    for entry in fields.objects("messages"):
        message = _message(entry, functions, part_paths)
        if message.role == "assistant" and not message.parts:
            continue
        if messages and messages[-1].role == message.role:
            message = Message(message.role, messages.pop().parts + message.parts)
        messages.append(message)
    if not messages:
        fields.refuse("messages", "must hold at least one message")
    return tuple(messages)


def _message(entry: Fields, functions: dict[str, str], part_paths: PartPaths) -> Message:
    entry.required_string("role")
    role = cast("Role", entry.choice("role", ROLES))
    if entry.get("content") is None:
        entry.refuse_missing("content", "a string or an array of blocks")
    return Message(role, tuple(_content(entry, "content", ALLOWED[role], functions, part_paths)))


def _content(
    entry: Fields,
    key: str,
    allowed: tuple[str, ...],
    functions: dict[str, str],
    part_paths: PartPaths | None = None,
) -> Iterator[Part]:
    """The parts of a string or of an array of blocks. `functions`: id of a call -> its function,
    filled on the way, as is `part_paths`."""
    value = entry.get(key)
    if value is None:
        return
    if type(value) is str:
        if value:
            yield Text(value)
        return
    if type(value) is not list:
        entry.refuse_type(key, "a string or an array of blocks")
    for block in entry.objects(key):
        for part in _block(block, allowed, functions, part_paths):
            if part_paths is not None:
                part_paths.note(part, block.path)
            yield part


def _block(
    block: Fields, allowed: tuple[str, ...], functions: dict[str, str], part_paths: PartPaths | None
) -> Iterator[Part]:
    kind = block.required_string("type")
    if kind not in allowed:
        if kind in IGNORED or kind.endswith(IGNORED_SUFFIX):
            return
        block.refuse(
            "type", f"must be {one_of(allowed)} here, not {shown(kind)}", code="unsupported_value"
        )
    match kind:
        case "text":
            text = block.required_string("text")
            if text:
                yield Text(text)
        case "thinking":
            yield Reasoning(block.required_string("thinking"))
        case "tool_use":
            call = _tool_use(block)
            functions[call.id] = call.name
            yield call
        case "tool_result":
            yield from _tool_result(block, functions, part_paths)
        case "image":
            yield _image(block)
        case "document":
            yield from _document(block, part_paths)
        case "search_result":
            yield _search_result(block)
        case "container_upload":
            yield _stored_file(block, None)
        case "tool_reference":
            return


def _tool_use(block: Fields) -> ToolCall:
    arguments = block.object("input")
    return ToolCall(
        id=block.required_string("id"),
        name=block.required_string("name"),
        arguments=orjson.dumps(arguments.values if arguments is not None else {}).decode(),
    )


def _tool_result(
    block: Fields, functions: dict[str, str], part_paths: PartPaths | None
) -> Iterator[Part]:
    """The result as text; what is no text stands beside it."""
    call_id = block.required_string("tool_use_id")
    failed = block.boolean("is_error") or False
    parts = list(_content(block, "content", IN_RESULTS, {}, part_paths))
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    if failed and not text:
        text = NO_OUTPUT
    yield ToolResult(call_id, text, functions.get(call_id), failed)
    yield from (part for part in parts if not isinstance(part, Text))


def _image(block: Fields) -> Part:
    source = block.required_object("source")
    source.required_string("type")
    match source.choice("type", ("base64", "url", "file")):
        case "base64":
            mime_type = source.required_string("media_type")
            if not mime_type.startswith("image/"):
                source.refuse("media_type", "must be the type of an image: image/png, image/jpeg")
            return Image(data=decode_data(source, "data")[0], mime_type=mime_type)
        case "url":
            return Image(*decode_source(source, "url"))
        case _:
            return _stored_file(source, None)


def _document(block: Fields, part_paths: PartPaths | None) -> Iterator[Part]:
    """Text is shown whole; what is a file is one of the request's files."""
    title = block.string("title")
    name = base_name(title[:MAX_FILE_NAME_CHARS]) if title else None
    context = block.string("context")
    source = block.required_object("source")
    source.required_string("type")
    match source.choice("type", ("base64", "text", "content", "url", "file")):
        case "text":
            yield _titled("Document", title, context, source.required_string("data"))
        case "content":
            if source.get("content") is None:
                source.refuse_missing("content", "a string or an array of blocks")
            parts = list(_content(source, "content", IN_DOCUMENTS, {}, part_paths))
            text = "\n".join(part.text for part in parts if isinstance(part, Text))
            yield _titled("Document", title, context, text)
            yield from (part for part in parts if not isinstance(part, Text))
        case "base64":
            mime_type = source.string("media_type") or PDF
            yield File(name=name, data=decode_data(source, "data")[0], mime_type=mime_type)
        case "url":
            yield File(name=name, url=decode_address(source, "url"))
        case _:
            yield _stored_file(source, name)


def _stored_file(fields: Fields, name: str | None) -> File:
    fields.required_string("file_id")
    return File(file_id=decode_file_id(fields), name=name)


def _search_result(block: Fields) -> Text:
    source = block.required_string("source")
    parts = _content(block, "content", ALLOWED["system"], {})
    text = "\n".join(part.text for part in parts if isinstance(part, Text))
    return _titled("Search result", block.required_string("title"), source, text)


def _titled(kind: str, title: str | None, about: str | None, text: str) -> Text:
    head = f"[{kind}: {title}]" if title else f"[{kind}]"
    return Text("\n".join([head, *([about] if about else []), text]))
