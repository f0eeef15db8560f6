"""The fields of a request that its response repeats: what was understood of them, as it was sent.

Fields without a meaning are left out, so that an answer holds nothing that was not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.api.codecs.request_fields.fields import Fields
from penstock.api.codecs.request_fields.hosted_tools import hosted_kind
from penstock.api.codecs.request_fields.tools import NAMESPACE
from penstock.dialog import Limits

Shape = Mapping[str, Any]
"""The fields kept of an object: name -> the shape of what is inside, or None for any value."""

_FUNCTION: Final[Shape] = {"name": None, "description": None, "parameters": None, "strict": None}
_NAMESPACE: Final[Shape] = {"name": None, "description": None}
_SCHEMA: Final[Shape] = {"name": None, "description": None, "schema": None, "strict": None}
_LOCATION: Final[Shape] = dict.fromkeys(("type", "city", "country", "region", "timezone"))
_DOMAINS: Final[Shape] = dict.fromkeys(("allowed_domains", "blocked_domains"))
_PREVIEW: Final[Shape] = {
    "search_context_size": None,
    "search_content_types": None,
    "user_location": _LOCATION,
}
_SKILL: Final[Shape] = dict.fromkeys(("type", "skill_id", "version"))
_HOSTED: Final[Mapping[str, Shape]] = {
    "web_search": {
        **_PREVIEW,
        "filters": _DOMAINS,
        "external_web_access": None,
        "return_token_budget": None,
    },
    "web_search_preview": _PREVIEW,
    "code_interpreter": {"container": {"type": None}},
    "shell": {"environment": {"type": None, "skills": _SKILL}},
}


def echoed(fields: Fields, limits: Limits, store: bool, background: bool) -> dict[str, Any]:
    """In the order of the resource. What was not said and has no default here is null. The fields
    must have been decoded: nothing is checked here."""

    def said(key: str, default: Any = None) -> Any:
        value = fields.get(key)
        return default if value is None else value

    return {
        "background": background,
        "frequency_penalty": said("frequency_penalty"),
        "presence_penalty": said("presence_penalty"),
        "instructions": said("instructions"),
        "max_output_tokens": limits.max_tokens,
        "max_tool_calls": None,
        "metadata": said("metadata", {}),
        "parallel_tool_calls": said("parallel_tool_calls", True),
        "previous_response_id": said("previous_response_id"),
        "store": store,
        "temperature": said("temperature"),
        "text": {"format": _format(said("text", {}).get("format"), said("response_format"))},
        "tool_choice": _choice(said("tool_choice", "auto")),
        "tools": [_tool(tool) for tool in said("tools", [])],
        "top_logprobs": said("top_logprobs"),
        "top_p": said("top_p"),
        "truncation": said("truncation", "disabled"),
    }


def _format(*wanted: dict[str, Any] | None) -> dict[str, Any]:
    """The one of them that asks for more than text; in the chat API's form the schema is nested."""
    for form in wanted:
        if form is not None and form["type"] != "text":
            return {"type": form["type"], **_kept(form.get("json_schema") or form, _SCHEMA)}
    return {"type": "text"}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Functions are flat, as OpenAI has them, however they were sent."""
    kind = hosted_kind(tool["type"])
    if kind is not None:
        return {"type": kind, **_kept(tool, _HOSTED[kind])}
    if tool["type"] == NAMESPACE:
        members = [_tool(member) for member in tool.get("tools") or ()]
        return {"type": NAMESPACE, **_kept(tool, _NAMESPACE), "tools": members}
    return {"type": "function", **_kept(_inner(tool, "function"), _FUNCTION)}


def _choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    if choice["type"] == "function":
        return _named(choice)
    allowed = _inner(choice, "allowed_tools")
    tools = [_named(tool) for tool in allowed["tools"]]
    return {"type": choice["type"], "mode": allowed["mode"], "tools": tools}


def _named(choice: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "name": _inner(choice, "function")["name"]}


def _inner(entry: dict[str, Any], key: str) -> dict[str, Any]:
    """What was sent nested under `key`, which then counts alone, or flat."""
    nested: dict[str, Any] | None = entry.get(key)
    return entry if nested is None else nested


def _kept(value: dict[str, Any], shape: Shape) -> dict[str, Any]:
    """An object with those fields of `shape` that are not null."""
    given = {key: value[key] for key in shape if value.get(key) is not None}
    return {
        key: inner if shape[key] is None else _kept_inside(inner, shape[key])
        for key, inner in given.items()
    }


def _kept_inside(value: dict[str, Any] | list[dict[str, Any]], shape: Shape) -> Any:
    if isinstance(value, list):
        return [_kept(entry, shape) for entry in value]
    return _kept(value, shape)
