"""Decodes the blocks of server tools in earlier answers, which clients send back."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

import orjson

from penstock.api.codecs.messages.server_tool_blocks import (
    BLOCK_NAMES,
    CALL_ID,
    MCP_ID,
    SERVER_ID,
    SHELL,
)
from penstock.api.schema.messages import content_blocks as b
from penstock.dialog import ToolCall, ToolResult

CallBlock = b.ServerToolUseBlock | b.McpToolUseBlock
TOOL_NAMES: Final = {block: tool for tool, block in BLOCK_NAMES.items()}


def paired_ids(blocks: Sequence[object]) -> set[str]:
    """Return the ids of the calls in one answer that have a name and are followed by a result."""
    called: set[str] = set()
    paired: set[str] = set()
    for block in blocks:
        match block:
            case b.ServerToolUseBlock(id=str(key), name=str()):
                called.add(key)
            case b.McpToolUseBlock(id=str(key), name=str()):
                called.add(key)
            case b.WebSearchToolResultBlock(tool_use_id=str(key)) if key in called:
                paired.add(key)
    return paired


def decode_call(block: CallBlock) -> ToolCall:
    """Return the call of a block whose id is paired."""
    arguments = dict(block.input) if isinstance(block.input, dict) else {}
    name: str = block.name
    if isinstance(block, b.ServerToolUseBlock):
        command = arguments.pop("command", None) if name == SHELL else None
        if command is not None:
            arguments = {"commands": [command], **arguments}
        name = TOOL_NAMES.get(name, name)
    return ToolCall(_call_id(block.id), name, orjson.dumps(arguments).decode())


def decode_result(block: b.WebSearchToolResultBlock, function: str | None) -> ToolResult:
    """Return the result of a block whose id is paired. `function`: the function that was called."""
    failed = block.is_error is True
    if isinstance(block.content, dict):
        kind, code = block.content.get("type"), block.content.get("return_code")
        failed = failed or code not in (None, 0) or str(kind).endswith("_error")
    return ToolResult(_call_id(block.tool_use_id), _text(block), function, failed)


def _call_id(block_id: str) -> str:
    """Return the id of the call whose block has the id `block_id`."""
    for prefix in (SERVER_ID, MCP_ID):
        if block_id.startswith(prefix):
            return CALL_ID + block_id.removeprefix(prefix)
    return block_id


def _text(block: b.WebSearchToolResultBlock) -> str:
    """Return the result of a call as the model sees it. If the client did not send
    `result_content`, it is made from `content`."""
    content = block.content
    if isinstance(block.result_content, str):
        return block.result_content
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    texts = [block["text"] for block in blocks if _is_text(block)]
    if texts:
        return "\n".join(texts)
    if isinstance(content, list):
        return orjson.dumps({"output": [_plain(block) for block in content]}).decode()
    return orjson.dumps(_plain(content)).decode()


def _is_text(block: object) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text"), str)


def _plain(block: Any) -> Any:
    """Return a block of a result without its type, with its passage in plain text."""
    if not isinstance(block, dict):
        return block
    hidden = ("type", "encrypted_content", "page_age", "retrieved_at")
    fields = {key: value for key, value in block.items() if key not in hidden}
    return fields | _passage(block.get("encrypted_content"))


def _passage(token: object) -> dict[str, Any]:
    """Return the description and content of a search result from our `encrypted_content`; {} for
    a token of another server."""
    if not isinstance(token, str):
        return {}
    try:
        passage = orjson.loads(b64decode(token, validate=True))
    except (binascii.Error, ValueError):
        return {}
    return passage if isinstance(passage, dict) else {}
