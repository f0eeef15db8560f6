"""Decodes the content blocks of `system` and `messages` into messages of the dialog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

import orjson

from penstock.api.codecs.messages.server_tool_history import (
    decode_call,
    decode_result,
    paired_ids,
)
from penstock.api.codecs.request_fields.json_body import objects_in
from penstock.api.codecs.request_fields.media import (
    base_name,
    decode_address,
    decode_data,
    decode_source,
)
from penstock.api.codecs.request_fields.part_paths import PartPaths
from penstock.api.codecs.request_fields.refusals import refuse
from penstock.api.schema.messages import content_blocks as b
from penstock.dialog import File, Image, Message, Part, Reasoning, Text, ToolCall, ToolResult
from penstock.dialog.message import Role

ROLES: Final[dict[type, Role]] = {b.UserTurn: "user", b.SystemTurn: "system"}
MAX_TITLE_CHARS: Final = 255
RESULT_SUFFIX: Final = "_tool_result"
# Anthropic's coding agent starts `system` with this header and a value that changes with every
# conversation. If the header were kept, the prefix cache would never have a hit.
BILLING: Final = "x-anthropic-billing-header:"
NO_OUTPUT: Final = "The call failed."
PDF: Final = "application/pdf"


def prepare_blocks(values: dict[str, Any]) -> None:
    """Give all blocks whose type ends in `_tool_result` the type `web_search_tool_result`, which
    the schema accepts for all of them. Changes the parsed body in place."""
    messages = values.get("messages")
    contents = [entry.get("content") for entry in objects_in(messages)]
    for content in (values.get("system"), *contents):
        _prepare(content)


def decode_system(system: str | Sequence[b.SystemBlock] | None) -> tuple[Message, ...]:
    """Return the system message, or () if `system` has no text. Ignored blocks and the billing
    header of Anthropic's coding agent are left out."""
    blocks = _Blocks(PartPaths()).parts(system or (), "system")
    parts = tuple(p for p in blocks if not (isinstance(p, Text) and p.text.startswith(BILLING)))
    return (Message("system", parts),) if parts else ()


def decode_messages(
    entries: Iterable[b.InputMessageParam], part_paths: PartPaths
) -> tuple[Message, ...]:
    """Return the messages, with consecutive messages of one role joined. The paths of media and
    files are noted in `part_paths`. Raises InvalidRequest if no message is left."""
    blocks = _Blocks(part_paths)
    messages: list[Message] = []
    for index, entry in enumerate(entries):
        place = f"messages[{index}].content"
        for message in blocks.turn(entry, place):
            if messages and messages[-1].role == message.role:
                message = Message(message.role, messages.pop().parts + message.parts)
            messages.append(message)
    if not messages:
        refuse("messages", "must hold at least one message")
    return tuple(messages)


class _Blocks:
    """Decodes content blocks into parts. The paths of media and files are noted in `part_paths`."""

    def __init__(self, part_paths: PartPaths) -> None:
        self._functions: dict[str, str] = {}  # id of a call -> name of its function
        self._paired: set[str] = set()  # ids of server calls of the current answer with a result
        self._part_paths = part_paths

    def turn(self, entry: b.InputMessageParam, path: str) -> Iterator[Message]:
        """Yield the messages of one turn. An earlier answer has one for each result of a server
        tool, and one for the parts between results. `path`: the path of its content."""
        if not isinstance(entry, b.AssistantTurn):
            yield Message(ROLES[type(entry)], tuple(self.parts(entry.content, path)))
            return
        self._paired = paired_ids(entry.content)
        answer = self.parts(entry.content, path)
        for is_result, group in groupby(answer, lambda part: isinstance(part, ToolResult)):
            yield Message("tool" if is_result else "assistant", tuple(group))
        self._paired = set()

    def parts(self, content: str | Sequence[b.Block], path: str) -> Iterator[Part]:
        """Yield the parts of a string or of an array of blocks. `path`: the path of `content` in
        the body."""
        if isinstance(content, str):
            if content:
                yield Text(content)
            return
        for index, block in enumerate(content):
            if isinstance(block, b.TextBlock):
                if block.text:
                    yield Text(block.text)
                continue
            place = f"{path}[{index}]"
            for part in self._block(block, place):
                self._part_paths.note(part, place)
                yield part

    def _block(self, block: b.Block, path: str) -> Iterator[Part]:
        match block:
            case b.ThinkingBlock():
                yield Reasoning(block.thinking)
            case b.ToolUseBlock():
                self._functions[block.id] = block.name
                arguments = orjson.dumps(block.input or {}).decode()
                yield ToolCall(block.id, block.name, arguments)
            case b.ServerToolUseBlock() | b.McpToolUseBlock() if self._is_paired(block.id):
                call = decode_call(block)
                self._functions[block.id] = call.name
                yield call
            case b.WebSearchToolResultBlock() if self._is_paired(block.tool_use_id):
                yield decode_result(block, self._functions.get(block.tool_use_id))
            case b.ToolResultBlock():
                yield from self._tool_result(block, path)
            case b.ImageBlock():
                yield _image(block, f"{path}.source")
            case b.DocumentBlock():
                yield from self._document(block, f"{path}.source")
            case b.SearchResultBlock():
                parts = self.parts(block.content, f"{path}.content")
                yield _titled("Search result", block.title, block.source, _text(parts))
            case b.ContainerUploadBlock():
                yield File(file_id=block.file_id)

    def _is_paired(self, block_id: object) -> bool:
        return isinstance(block_id, str) and block_id in self._paired

    def _tool_result(self, block: b.ToolResultBlock, path: str) -> Iterator[Part]:
        """Yield the texts of a tool result as one ToolResult, then its media and files."""
        failed = block.is_error or False
        parts = list(self.parts(block.content or (), f"{path}.content"))
        text = _text(parts)
        if failed and not text:
            text = NO_OUTPUT
        function = self._functions.get(block.tool_use_id)
        yield ToolResult(block.tool_use_id, text, function, failed)
        yield from (part for part in parts if not isinstance(part, Text))

    def _document(self, block: b.DocumentBlock, path: str) -> Iterator[Part]:
        """Yield the parts of a document. A `text` or `content` source becomes one text part with
        title, context and text, followed by the source's images; any other source becomes a File.
        `path`: the path of `source` in the body."""
        name = base_name(block.title[:MAX_TITLE_CHARS]) if block.title else None
        match block.source:
            case b.TextSource(text):
                yield _titled("Document", block.title, block.context, text)
            case b.ContentSource(content):
                parts = list(self.parts(content, f"{path}.content"))
                yield _titled("Document", block.title, block.context, _text(parts))
                yield from (part for part in parts if not isinstance(part, Text))
            case b.Base64Document():
                data, _ = decode_data(block.source.data, f"{path}.data")
                yield File(name=name, data=data, mime_type=block.source.media_type or PDF)
            case b.UrlSource(url):
                yield File(name=name, url=decode_address(url, f"{path}.url"))
            case b.FileIdSource(file_id):
                yield File(file_id=file_id, name=name)


def _image(block: b.ImageBlock, path: str) -> Part:
    match block.source:
        case b.Base64Image():
            data, _ = decode_data(block.source.data, f"{path}.data")
            return Image(data=data, mime_type=block.source.media_type)
        case b.UrlSource(url):
            return Image(*decode_source(url, f"{path}.url"))
        case b.FileIdSource(file_id):
            return File(file_id=file_id)


def _prepare(content: object) -> None:
    for block in objects_in(content):
        kind = block.get("type")
        if kind == "text":
            continue
        if isinstance(kind, str) and kind.endswith(RESULT_SUFFIX):
            block["type"] = "web_search_tool_result"
        _prepare(block.get("content"))
        for source in objects_in([block.get("source")]):
            _prepare(source.get("content"))


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _titled(kind: str, title: str | None, about: str | None, text: str) -> Text:
    head = f"[{kind}: {title}]" if title else f"[{kind}]"
    return Text("\n".join([head, *([about] if about else []), text]))
