"""The state of a chat in the terminal, and its commands. Knows no terminal and no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.dialog import GenerateRequest, Limits, Message, ReasoningPolicy, Sampling, Text

HELP: Final = """\
/help                 this list
/exit                 leave (also Ctrl-D)
/clear                forget the conversation
/system [TEXT]        set the system message, or drop it
/adapter [ALIAS]      use an adapter that was loaded with --lora, or none
/temperature [X]      0 to 2; nothing: the model's own
/topk [N]             keep the N likeliest tokens; 0: all of them
/topp [X]             keep the likeliest tokens up to this probability, 0 to 1
Ctrl-C stops an answer."""


class ExitChat(Exception):
    """The user asked to leave."""


class Conversation:
    """What was said, and how the next answer is drawn."""

    def __init__(
        self,
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        reasoning: ReasoningPolicy = ReasoningPolicy(),  # noqa: B008
        adapter: str | None = None,
    ) -> None:
        self.system = system
        self.adapter = adapter
        self.sampling = sampling
        self._limits = limits
        self._reasoning = reasoning
        self.messages: list[Message] = []
        self._commands: dict[str, Callable[[str], str]] = {
            "/help": lambda _: HELP,
            "/exit": self._leave,
            "/clear": self._clear,
            "/adapter": self._set_adapter,
            "/system": self._set_system,
            "/temperature": self._set_temperature,
            "/topk": self._set_top_k,
            "/topp": self._set_top_p,
        }

    def command(self, line: str) -> str:
        """Carry out a line that starts with a slash; what to tell the user. Raises ExitChat."""
        name, _, argument = line.strip().partition(" ")
        known = self._commands.get(name)
        if known is None:
            return f"There is no command {name}; /help lists them."
        try:
            return known(argument.strip())
        except InvalidRequest as error:
            return error.message

    def request(self, text: str) -> GenerateRequest:
        """What the user said, after all that was said before."""
        system = [Message("system", (Text(self.system),))] if self.system else []
        messages = (*system, *self.messages, Message("user", (Text(text),)))
        return GenerateRequest(
            messages=messages,
            adapter=self.adapter,
            sampling=self.sampling,
            limits=self._limits,
            reasoning=self._reasoning,
        )

    def keep(self, text: str, answer: str) -> None:
        """Remember an exchange; also one that the user cut short."""
        self.messages += [Message("user", (Text(text),)), Message("assistant", (Text(answer),))]

    def _leave(self, _: str) -> str:
        raise ExitChat

    def _clear(self, _: str) -> str:
        self.messages.clear()
        return "Forgotten."

    def _set_system(self, text: str) -> str:
        self.system = text or None
        return "System message set." if text else "No system message."

    def _set_adapter(self, alias: str) -> str:
        self.adapter = alias or None
        return f"adapter: {alias}" if alias else "No adapter."

    def _set_temperature(self, text: str) -> str:
        value = _number("/temperature", text, 0, 2)
        self.sampling = msgspec.structs.replace(self.sampling, temperature=value)
        return f"temperature: {_shown(value)}"

    def _set_top_k(self, text: str) -> str:
        value = _number("/topk", text, 0, 2**31 - 1)
        if value is not None and value != int(value):
            raise InvalidRequest("/topk takes a whole number")
        top_k = None if value is None else int(value)
        self.sampling = msgspec.structs.replace(self.sampling, top_k=top_k)
        return f"top_k: {_shown(self.sampling.top_k)}"

    def _set_top_p(self, text: str) -> str:
        value = _number("/topp", text, 0, 1)
        self.sampling = msgspec.structs.replace(self.sampling, top_p=value)
        return f"top_p: {_shown(value)}"


def _number(name: str, text: str, least: float, most: float) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise InvalidRequest(f"{name} takes a number") from None
    if not least <= value <= most:
        raise InvalidRequest(f"{name} takes a number from {least:g} to {most:g}")
    return value


def _shown(value: float | None) -> str:
    return "the model's own" if value is None else f"{value:g}"
