"""Detects the features that a chat template supports by rendering probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import InvalidRequest

Messages = list[dict[str, Any]]
Render = Callable[[Messages, list[dict[str, Any]] | None], str]

SHORT_ID_CHARS: Final = 9
_LONG_ID: Final = "call_0123456789abcdef"
_NAMES: Final = ("probe_first", "probe_second")
"""Functions that the probe calls name. They differ from the function that `_TOOL` defines, because
both are rendered together."""
_SYSTEM: Final = {"role": "system", "content": "probe-system"}
_USER: Final = {"role": "user", "content": "probe-user"}
_ASSISTANT: Final = {"role": "assistant", "content": "probe-assistant"}
_LATE: Final = {
    role: {"role": role, "content": f"probe-late-{role}"}
    for role in ("system", "user", "assistant")
}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}

_BARE_TOOL: Final = {"type": "function", "function": {"name": "probe_tool"}}


@dataclass(frozen=True, slots=True)
class TemplateCapabilities:
    """Features of a chat template. True: the template supports the feature.

    - `users`: a plain conversation.
    - `system`: system messages.
    - `tools`: tool definitions.
    - `bare_tools`: tool definitions without description and parameters.
    - `calls`: tool calls.
    - `several_calls`: several tool calls in one message.
    - `results`: tool messages.
    - `text_arguments`: the arguments of tool calls must be JSON text.
    - `short_ids`: the ids of tool calls must have nine characters.
    - `late_system`: system messages are shown in any position, also after other messages.
    - `repeated_roles`: roles of which consecutive messages are allowed, among "system", "user" and
      "assistant".
    - `assistant_first`: a conversation that the assistant starts.
    - `system_alone`: a system message without any other message.
    """

    users: bool
    system: bool
    tools: bool
    bare_tools: bool
    calls: bool
    results: bool
    text_arguments: bool
    short_ids: bool
    several_calls: bool
    late_system: bool
    repeated_roles: frozenset[str]
    assistant_first: bool
    system_alone: bool


def probe_capabilities(render: Render) -> TemplateCapabilities:
    """Return the features of a template: render a few conversations and check the output.

    `render` raises InvalidRequest if the template refuses a conversation.
    """

    def shown(
        messages: Messages, *words: str, tools: bool = False, tool: dict[str, Any] = _TOOL
    ) -> bool:
        try:
            text = render(messages, [tool] if tools else None)
        except InvalidRequest:
            return False
        return all(word in text for word in words)

    def shown_somehow(messages: Messages, *words: str) -> bool:
        """Whether the words are shown without tools or with tools, since a template for requests
        with tools may require them."""
        return shown(messages, *words) or shown(messages, *words, tools=True)

    def all_shown(*messages: dict[str, Any]) -> bool:
        return shown_somehow([*messages], *(message["content"] for message in messages))

    calls, text_arguments, short_ids = _probe_calls(shown)
    arguments: Any = '{"probe_argument": 1}' if text_arguments else {"probe_argument": 1}
    call_id = _LONG_ID[:SHORT_ID_CHARS] if short_ids else _LONG_ID
    called = _called(arguments, call_id)
    both = _called(arguments, call_id, _other_id(call_id))
    result, other = _result(call_id, "probe-out"), _result(_other_id(call_id), "probe-end")
    results = calls and shown([_USER, called, result], "probe-out", tools=True)
    return TemplateCapabilities(
        users=shown([_USER], "probe-user"),
        system=shown_somehow([_SYSTEM, _USER], _SYSTEM["content"]),
        tools=shown([_USER], "probe_tool", tools=True),
        bare_tools=shown([_USER], "probe_tool", tools=True, tool=_BARE_TOOL),
        calls=calls,
        results=results,
        text_arguments=text_arguments,
        short_ids=short_ids,
        several_calls=calls
        and shown([_USER, both, *([result, other] if results else [])], *_NAMES, tools=True),
        late_system=all_shown(_SYSTEM, _USER, _ASSISTANT, _LATE["system"], _LATE["user"]),
        repeated_roles=frozenset(
            role
            for role, talk in {
                "system": [_SYSTEM, _LATE["system"], _USER],
                "user": [_USER, _LATE["user"]],
                "assistant": [_USER, _ASSISTANT, _LATE["assistant"], _LATE["user"]],
            }.items()
            if all_shown(*talk)
        ),
        assistant_first=all_shown(_ASSISTANT, _USER),
        system_alone=all_shown(_SYSTEM),
    )


def probe_result(capabilities: TemplateCapabilities, content: Any) -> Messages:
    """Return a conversation with a tool result that has this content."""
    arguments: Any = {"probe_argument": 1}
    if capabilities.text_arguments:
        arguments = '{"probe_argument": 1}'
    call_id = _LONG_ID[:SHORT_ID_CHARS] if capabilities.short_ids else _LONG_ID
    question = {"role": "user", "content": "probe-question"}
    return [question, _called(arguments, call_id), {**_result(call_id, ""), "content": content}]


def _probe_calls(shown: Callable[..., bool]) -> tuple[bool, bool, bool]:
    """Return three flags: the template shows tool calls, their arguments must be JSON text, their
    ids must have nine characters."""
    for call_id in (_LONG_ID, _LONG_ID[:SHORT_ID_CHARS]):
        for arguments in ({"probe_argument": 1}, '{"probe_argument": 1}'):
            call = _called(arguments, call_id)
            talk = [_USER, call, _result(call_id, "x"), _USER]
            # A mapping that is not written as JSON appears with Python's single quotes; JSON text
            # that is encoded again appears with escaped quotes.
            for messages in ([_USER, call], talk):
                if shown(messages, _NAMES[0], '"probe_argument"', tools=True) or (
                    isinstance(arguments, dict)
                    and shown(messages, _NAMES[0], "probe_argument", tools=True)
                    and not shown(messages, "'probe_argument'", tools=True)
                    and not shown(messages, '\\"probe_argument', tools=True)
                ):
                    return True, isinstance(arguments, str), call_id != _LONG_ID
    return False, False, False


def _called(arguments: Any, *call_ids: str) -> dict[str, Any]:
    calls = [
        {"type": "function", "id": call_id, "function": {"name": name, "arguments": arguments}}
        for call_id, name in zip(call_ids, _NAMES, strict=False)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(call_id: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "name": _NAMES[0], "tool_call_id": call_id, "content": text}


def _other_id(call_id: str) -> str:
    return call_id[::-1]
