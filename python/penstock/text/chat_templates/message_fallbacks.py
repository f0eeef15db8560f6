"""Rewrites messages that a chat template does not support into messages that it supports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final

from penstock.text.chat_templates.capabilities import SHORT_ID_CHARS, TemplateCapabilities
from penstock.text.chat_templates.role_order import (
    BLANK_LINE,
    SYSTEM_ROLES,
    with_joined_roles,
    with_single_calls,
    with_system_first,
    with_user_first,
)
from penstock.text.chat_templates.template_messages import TemplateMessage
from penstock.text.tool_parsers.syntax import ToolSyntax

_LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_EXAMPLE: Final = ("function_name", {"argument": "value"})
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}


def with_fallbacks(
    messages: Sequence[TemplateMessage],
    tools: Sequence[dict[str, Any]] | None,
    capabilities: TemplateCapabilities,
    syntax: ToolSyntax,
) -> tuple[list[TemplateMessage], list[dict[str, Any]] | None]:
    """Return messages and tools for a template with these capabilities. `syntax`: the syntax in
    which the model writes tool calls.

    Each rewrite applies only if the template does not support the original:

    - Tool definitions move into the system message; missing fields of tools are added.
    - Tool calls become the text that the model would write; results become user messages.
    - Ids and arguments of calls get the format that the template expects.
    - Several calls in one message are split.
    - A system message becomes the start of the next user message; late system messages move to the
      front.
    - Consecutive messages of one role are merged.
    """
    found = [_call_forms(message, capabilities) for message in messages]
    if capabilities.system:
        found = with_joined_roles(with_system_first(found, capabilities), capabilities)
    if capabilities.calls and not capabilities.several_calls:
        found = with_single_calls(found)
    if tools and not capabilities.tools:
        found = _with_system(found, tool_prompt(tools, syntax))
    if not capabilities.calls:
        found = [_without_calls(message, syntax) for message in found]
    if not capabilities.results:
        found = _without_results(found)
    if not capabilities.system:
        found = _without_system(found)
    found = with_user_first(with_joined_roles(found, capabilities), capabilities)
    if not tools or not capabilities.tools:
        return found, None
    return found, list(tools) if capabilities.bare_tools else [_described(tool) for tool in tools]


def tool_prompt(tools: Sequence[dict[str, Any]], syntax: ToolSyntax) -> str:
    """Return instructions for a model: the functions and the syntax in which to call them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You may call functions to help with the user's request. These are the functions, as JSON,"
        f" one a line:\n<tools>\n{listed}\n</tools>\n\nTo call functions, answer with the calls and"
        f" nothing else. Write a call exactly like this:\n{syntax.write([_EXAMPLE])}\n\nTheir"
        " results follow in the next message. Answer in words where no function helps."
    )


def short_id(call_id: str) -> str:
    """Return an id of nine letters and digits: a hash of the given id."""
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big")
    digits = []
    for _ in range(SHORT_ID_CHARS):
        number, digit = divmod(number, len(_LETTERS))
        digits.append(_LETTERS[digit])
    return "".join(digits)


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    """Add the description and parameters to a tool definition that lacks them."""
    function = tool["function"]
    usual = {"name": function["name"], "description": "", "parameters": _NO_PARAMETERS}
    return {**tool, "function": {**usual, **function}}


def _call_forms(message: TemplateMessage, capabilities: TemplateCapabilities) -> TemplateMessage:
    if capabilities.short_ids and "tool_call_id" in message:
        return {**message, "tool_call_id": short_id(message["tool_call_id"])}
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = call["function"]
        if capabilities.text_arguments:
            text = json.dumps(function["arguments"], ensure_ascii=False)
            function = {**function, "arguments": text}
        call_id = short_id(call["id"]) if capabilities.short_ids else call["id"]
        calls.append({**call, "id": call_id, "function": function})
    return {**message, "tool_calls": calls}


def _without_calls(message: TemplateMessage, syntax: ToolSyntax) -> TemplateMessage:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [(function["name"], function["arguments"]) for function in functions]
    text = "\n".join(filter(None, (message["content"], syntax.write(calls))))
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": text}


def _without_results(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    found: list[TemplateMessage] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            message = {"role": "user", "content": text}
        if after_result and message["role"] == "user":  # roles must alternate: merge
            joined = found[-1]["content"] + "\n" + message["content"]
            found[-1] = {**message, "content": joined}
        else:
            found.append(message)
        after_result = is_result
    return found


def _with_system(messages: Sequence[TemplateMessage], text: str) -> list[TemplateMessage]:
    if messages and messages[0]["role"] in SYSTEM_ROLES:
        first = {**messages[0], "content": messages[0]["content"] + BLANK_LINE + text}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _without_system(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Move system text to the start of the next user message."""
    found: list[TemplateMessage] = []
    system: list[str] = []
    for message in messages:
        if message["role"] in SYSTEM_ROLES:
            system.append(message["content"])
        elif system and message["role"] == "user":
            found.append({**message, "content": BLANK_LINE.join([*system, message["content"]])})
            system = []
        else:
            found.append(message)
    if system:
        found.append({"role": "user", "content": BLANK_LINE.join(system)})
    return found
