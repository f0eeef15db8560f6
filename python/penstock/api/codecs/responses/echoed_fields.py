"""Returns the fields of a request that its response repeats.

Fields that the schema does not know are left out, so that an answer contains only validated values.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.api.schema import constraints as c
from penstock.api.schema import tools as t
from penstock.api.schema.hosted import WebSearchPreviewTool
from penstock.api.schema.responses.request_and_resource import OpenResponsesCreateRequest, Tool
from penstock.dialog import Limits

Format = c.TextFormat | c.JsonSchemaFormat | c.FlatJsonSchemaFormat | c.JsonObjectFormat


def echoed(
    asked: OpenResponsesCreateRequest, limits: Limits, store: bool, background: bool
) -> dict[str, Any]:
    """Return the repeated fields in the order of the resource. A field that was not sent has its
    default or, if it has none, null."""
    parallel = asked.parallel_tool_calls
    text_format = asked.text.format if asked.text is not None else None
    return {
        "background": background,
        "frequency_penalty": asked.frequency_penalty,
        "presence_penalty": asked.presence_penalty,
        "instructions": asked.instructions,
        "max_output_tokens": limits.max_tokens,
        "max_tool_calls": None,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": True if parallel is None else parallel,
        "previous_response_id": asked.previous_response_id,
        "store": store,
        "temperature": asked.temperature,
        "text": {"format": _format(text_format, asked.response_format)},
        "tool_choice": _choice(asked.tool_choice or "auto"),
        "tools": [_tool(tool) for tool in asked.tools or ()],
        "top_logprobs": asked.top_logprobs,
        "top_p": asked.top_p,
        "truncation": asked.truncation or "disabled",
    }


def _format(
    *wanted: c.TextFormat | c.JsonSchemaFormat | c.FlatJsonSchemaFormat | c.JsonObjectFormat | None,
) -> Any:
    """Return the first of the formats that is not plain text, with the schema flat instead of
    nested; `{"type": "text"}` if there is none."""
    for form in wanted:
        if isinstance(form, c.JsonSchemaFormat):
            return {"type": "json_schema", **msgspec.to_builtins(form.json_schema)}
        if form is not None and not isinstance(form, c.TextFormat):
            return msgspec.to_builtins(form)
    return {"type": "text"}


def _tool(tool: Tool) -> dict[str, Any]:
    """Return the JSON of a tool. Functions are always flat, as in OpenAI's resource."""
    if isinstance(tool, t.FunctionTool) and tool.function is not None:
        return {"type": "function", **msgspec.to_builtins(tool.function)}
    if isinstance(tool, t.NamespaceTool):
        members = [_tool(member) for member in tool.tools]
        return {**msgspec.to_builtins(msgspec.structs.replace(tool, tools=[])), "tools": members}
    if isinstance(tool, WebSearchPreviewTool):
        tool = msgspec.structs.replace(tool, external_web_access=None)
    shown: dict[str, Any] = msgspec.to_builtins(tool)
    return shown


def _choice(choice: t.ToolChoice) -> str | dict[str, Any]:
    match choice:
        case str():
            return choice
        case t.FunctionChoice():
            return _named(choice)
    allowed = choice.allowed_tools or choice
    tools = [_named(tool) for tool in allowed.tools or ()]
    return {"type": "allowed_tools", "mode": allowed.mode, "tools": tools}


def _named(choice: t.FunctionChoice) -> dict[str, Any]:
    owner = choice.function or choice
    return {"type": "function", "name": owner.name}
