"""Collects the texts of a conversation and estimates their length, without rendering a template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import json

from penstock.dialog import (
    FunctionTool,
    GenerateRequest,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

MARKUP_CHARS: Final = 8
"""Characters that every template writes around a message, at least."""


@dataclass(frozen=True, slots=True)
class PromptTexts:
    """The texts of a conversation and of the tools that the model sees.

    - `shown`: texts that every template writes.
    - `chars`: approximate characters of the rendered prompt, including reasoning.
    """

    shown: tuple[str, ...]
    chars: int


def texts_of(messages: Sequence[Message], tools: Sequence[FunctionTool]) -> PromptTexts:
    """Return the texts of messages and tools, with their approximate length."""
    shown: list[str] = []
    chars = 0
    for message in messages:
        chars += MARKUP_CHARS + len(message.parts)
        for part in message.parts:
            match part:
                case Text() | ToolResult():
                    shown.append(part.text)
                case ToolCall():
                    shown += (part.name, part.arguments)
                case Reasoning():
                    chars += len(part.text)
    chars += sum(map(len, shown))
    for tool in tools:
        shown += _texts_of_tool(tool)
        chars += len(tool.name) + len(tool.description or "") + len(json.encode(tool.parameters))
    return PromptTexts(tuple(shown), chars)


def shown_tools(request: GenerateRequest) -> tuple[FunctionTool, ...]:
    """Return the tools that the prompt shows to the model, () if they must not be called."""
    return request.tools if request.tool_policy.mode != "none" else ()


def prompt_chars(request: GenerateRequest) -> int:
    """Return the approximate number of characters to render and tokenize for a request."""
    if request.messages is not None:
        return texts_of(request.messages, shown_tools(request)).chars + len(request.answer_prefix)
    given = (*(request.prompts or (request.prompt,)), request.suffix)
    return sum(len(prompt) for prompt in given if isinstance(prompt, str))


def _texts_of_tool(tool: FunctionTool) -> Iterator[str]:
    """Yield the texts of a tool: name, description, and the keys and values of its schema."""
    open_values: list[Any] = [tool.name, tool.description or "", tool.parameters or ""]
    while open_values:
        item = open_values.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict) and item:
            open_values.extend(item)
            open_values.extend(item.values())
        elif isinstance(item, list) and item:
            open_values.extend(item)
        else:
            yield json.encode(item).decode()
