"""Commands about settings: /system, /set and the short ones of single fields."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from penstock.cli.chat.chat_settings import FIELDS, range_of, shown, with_value
from penstock.cli.chat.command_context import CommandContext, Outcome

DEFAULT: Final = "default"
MAX_SHOWN: Final = 16
"""Length of a value in the list of all settings."""


async def system(chat: CommandContext, text: str) -> Outcome:
    """Set or remove the system message."""
    if text:
        chat.conversation.settings["system"] = text
        return "System message set."
    chat.conversation.settings.pop("system", None)
    return "No system message."


async def set_field(chat: CommandContext, argument: str) -> Outcome:
    """Show all settings, show one, or change one."""
    name, _, text = argument.partition(" ")
    if not name:
        return _table(chat)
    if not text.strip() and name in FIELDS:
        return f"{name}: {_described(chat, name)}"
    return await _change(chat, name, text.strip())


def setter_of(name: str) -> Callable[[CommandContext, str], Awaitable[Outcome]]:
    """Return the function of a command that sets one field; without a value it resets it."""

    async def change(chat: CommandContext, text: str) -> Outcome:
        return await _change(chat, name, text)

    return change


async def _change(chat: CommandContext, name: str, text: str) -> Outcome:
    chat.conversation.settings = with_value(chat.conversation.settings, name, text)
    return f"{name}: {_value(chat, name)}"


def _table(chat: CommandContext) -> str:
    rows = [(name, _short(_value(chat, name)), range_of(name)) for name in FIELDS]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{first}}  {value:<{second}}  {told}" for name, value, told in rows)


def _short(value: str) -> str:
    return value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 3]}..."


def _described(chat: CommandContext, name: str) -> str:
    return f"{_value(chat, name)}  ({range_of(name)})"


def _value(chat: CommandContext, name: str) -> str:
    if name in chat.conversation.settings:
        return shown(chat.conversation.settings[name])
    default = chat.backend.model.defaults.get(name)
    return DEFAULT if default is None else f"{DEFAULT} {shown(default)}"
