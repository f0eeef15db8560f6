"""What a chat template can show, found out by showing it something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import InvalidRequest

Messages = list[dict[str, Any]]
Render = Callable[[Messages, list[dict[str, Any]] | None], str]

SHORT_ID_CHARS: Final = 9
_LONG_ID: Final = "call_0123456789abcdef"
_USER: Final = {"role": "user", "content": "probe-user"}
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """`users`: it shows a plain conversation; `system`: messages of that role; `tools`: tool
    definitions; `calls` of an assistant; `results`: messages of the role "tool". `text_arguments`:
    it wants the arguments of calls as JSON text. `short_ids`: ids of calls have nine characters.
    """

    users: bool
    system: bool
    tools: bool
    calls: bool
    results: bool
    text_arguments: bool
    short_ids: bool


def traits_of(render: Render) -> TemplateTraits:
    """Show a template a few conversations. `render` raises InvalidRequest where it refuses one."""

    def shown(messages: Messages, *words: str, tools: bool = False) -> bool:
        try:
            text = render(messages, [_TOOL] if tools else None)
        except InvalidRequest:
            return False
        return all(word in text for word in words)

    calls, text_arguments, short_ids = _calls(shown)
    arguments: Any = '{"probe_key": 1}' if text_arguments else {"probe_key": 1}
    call_id = _LONG_ID[:SHORT_ID_CHARS] if short_ids else _LONG_ID
    result = {"role": "tool", "name": "probe_tool", "tool_call_id": call_id, "content": "probe-out"}
    talk = [_USER, _called(arguments, call_id), result]
    told = [{"role": "system", "content": "probe-system"}, _USER]
    return TemplateTraits(
        users=shown([_USER], "probe-user"),
        # One for requests with tools may refuse to go without.
        system=shown(told, "probe-system") or shown(told, "probe-system", tools=True),
        tools=shown([_USER], "probe_tool", tools=True),
        calls=calls,
        results=calls and shown(talk, "probe-out", tools=True),
        text_arguments=text_arguments,
        short_ids=short_ids,
    )


def _calls(shown: Callable[..., bool]) -> tuple[bool, bool, bool]:
    """(calls are shown, their arguments as text, their ids short)."""
    result = {"role": "tool", "name": "probe_tool", "content": "x"}
    for call_id in (_LONG_ID, _LONG_ID[:SHORT_ID_CHARS]):
        for arguments in ({"probe_key": 1}, '{"probe_key": 1}'):
            call = _called(arguments, call_id)
            talk = [_USER, call, {**result, "tool_call_id": call_id}, _USER]
            # A mapping that is not written as JSON shows in Python's quotes; a text that is encoded
            # once more in escaped ones.
            for messages in ([_USER, call], talk):
                if shown(messages, "probe_tool", '"probe_key"', tools=True) or (
                    isinstance(arguments, dict)
                    and shown(messages, "probe_tool", "probe_key", tools=True)
                    and not shown(messages, "'probe_key'", tools=True)
                    and not shown(messages, '\\"probe_key', tools=True)
                ):
                    return True, isinstance(arguments, str), call_id != _LONG_ID
    return False, False, False


def _called(arguments: Any, call_id: str) -> dict[str, Any]:
    function = {"name": "probe_tool", "arguments": arguments}
    call = {"type": "function", "id": call_id, "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
