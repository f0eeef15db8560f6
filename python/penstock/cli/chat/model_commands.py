"""Commands about the model: /model, /adapter, /tools."""

from __future__ import annotations

from typing import Final

from penstock.base.errors import InvalidRequest
from penstock.cli.chat.command_context import CommandContext, Outcome

_SWITCH: Final = {"on": True, "off": False}
_OPTIONS: Final = {
    "search": "--enable-search",
    "code": "--enable-code-execution",
    "shell": "--enable-shell",
}


async def model(chat: CommandContext, name: str) -> Outcome:
    """List the models, or switch to one."""
    active = chat.backend.model
    if not name:
        choices = [(choice.name, choice.note) for choice in chat.backend.choices]
        if active.name not in [known for known, _ in choices]:
            choices.insert(0, (active.name, "loaded"))
        width = max(len(known) for known, _ in choices)
        return "\n".join(
            f"{'*' if known == active.name else ' '} {known:<{width}}  {note}"
            for known, note in choices
        )
    chat.screen.note(f"Loading {name} ...")
    await chat.backend.use(name)
    chat.conversation.settings.pop("adapter", None)
    return f"{chat.backend.model.name} answers from now on, {chat.backend.model.place}."


async def adapter(chat: CommandContext, alias: str) -> Outcome:
    """Use an adapter, or none."""
    if not alias:
        chat.conversation.settings.pop("adapter", None)
        return "No adapter."
    known = chat.backend.model.adapters
    if alias not in known:
        names = f"only {', '.join(known)}" if known else "and none is loaded (--lora loads one)"
        raise InvalidRequest(f"there is no adapter {alias}, {names}")
    chat.conversation.settings["adapter"] = alias
    return f"adapter: {alias}"


async def tools(chat: CommandContext, argument: str) -> Outcome:
    """Show the tools, or switch one on or off."""
    name, _, word = argument.partition(" ")
    if not name:
        return "\n".join(f"{one:<7} {_state(chat, one)}" for one in _OPTIONS)
    if name not in _OPTIONS or word.strip() not in _SWITCH:
        raise InvalidRequest(f"/tools needs one of {', '.join(_OPTIONS)}, then on or off")
    on = _SWITCH[word.strip()]
    if on and name not in chat.backend.model.tools:
        raise InvalidRequest(_missing(chat, name))
    chat.conversation.settings["tools"] = {
        **(chat.conversation.settings.get("tools") or {}),
        name: on,
    }
    return f"{name}: {word.strip()}"


def _state(chat: CommandContext, name: str) -> str:
    if name not in chat.backend.model.tools:
        return f"not available; start with {_OPTIONS[name]}"
    chosen = chat.conversation.settings.get("tools") or {}
    return "on" if chosen.get(name) else "off"


def _missing(chat: CommandContext, name: str) -> str:
    what = "the server" if "://" in chat.backend.model.place else "penstock run"
    return f"{name} is not available; start {what} with {_OPTIONS[name]}"
