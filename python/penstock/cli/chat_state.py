"""State and commands of a terminal chat, independent of the terminal and the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from penstock.base.errors import InvalidRequest
from penstock.base.ids import new_id
from penstock.dialog import (
    GenerateRequest,
    HostedTool,
    Limits,
    Message,
    Part,
    ReasoningPolicy,
    Sampling,
    Text,
)

HELP: Final = """\
/help                 show this list
/exit                 quit (also Ctrl-D)
/clear                start a new conversation
/system [TEXT]        set the system message; without TEXT, remove it
/attach FILE          show the model an image, a recording or a video with your next line
/adapter [ALIAS]      use an adapter loaded with --lora; without ALIAS, none
/temperature [X]      0 to 2; without X, the model's default
/topk [N]             sample from the N most likely tokens; 0 means all
/save NAME            write a file that a tool made to the current folder
/topp [X]             sample from the most likely tokens whose probabilities add up to X
Ctrl-C stops an answer."""


class ExitChat(Exception):
    """The user asked to leave the chat."""


class Conversation:
    """The messages so far, and the parameters for the next answer.

    `system`: the system message.
    `limits`: the maximum length of an answer.
    `reasoning`: whether the model reasons before it answers.
    `adapter`: the alias of the LoRA adapter to use; None: none.
    `hosted`: the tools that run in this process.
    `media`: images, recordings and videos for the first line of the user.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        sampling: Sampling = Sampling(),  # noqa: B008
        limits: Limits = Limits(),  # noqa: B008
        reasoning: ReasoningPolicy = ReasoningPolicy(),  # noqa: B008
        adapter: str | None = None,
        hosted: tuple[HostedTool, ...] = (),
        media: tuple[Part, ...] = (),
    ) -> None:
        self._waiting = media  # for the next line
        self._attached: tuple[Part, ...] = ()  # to the last line
        self._hosted = hosted
        self._container = new_id("cntr_")
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
            "/attach": self._attach,
            "/adapter": self._set_adapter,
            "/system": self._set_system,
            "/temperature": self._set_temperature,
            "/topk": self._set_top_k,
            "/topp": self._set_top_p,
        }

    def command(self, line: str) -> str:
        """Run a command line that starts with a slash, and return the text to show. Raises
        ExitChat."""
        name, _, argument = line.strip().partition(" ")
        known = self._commands.get(name)
        if known is None:
            return f"Unknown command {name}; /help lists the commands."
        try:
            return known(argument.strip())
        except InvalidRequest as error:
            return error.message

    def request(self, text: str) -> GenerateRequest:
        """Return the request for the next answer: the conversation so far, and the user's `text`
        with the media that wait for it."""
        self._attached, self._waiting = self._waiting, ()
        system = [Message("system", (Text(self.system),))] if self.system else []
        asked = Message("user", (*self._attached, Text(text)))
        messages = (*system, *self.messages, asked)
        return GenerateRequest(
            messages=messages,
            adapter=self.adapter,
            sampling=self.sampling,
            limits=self._limits,
            reasoning=self._reasoning,
            hosted=self._hosted,
            container=self._container if self._hosted else None,
        )

    def keep(self, text: str, answer: str) -> None:
        """Append the user's text with its media, and the model's answer, which may have been
        interrupted."""
        asked = Message("user", (*self._attached, Text(text)))
        self._attached = ()
        self.messages += [asked, Message("assistant", (Text(answer),))]

    def _leave(self, _: str) -> str:
        raise ExitChat

    def _clear(self, _: str) -> str:
        self.messages.clear()
        self._waiting = ()
        self._container = new_id("cntr_")
        return "Conversation cleared."

    def _set_system(self, text: str) -> str:
        self.system = text or None
        return "System message set." if text else "No system message."

    def _attach(self, path: str) -> str:
        from penstock.llm.content import content_parts

        try:
            self._waiting += content_parts([Path(path).expanduser()], "the file")
        except OSError as error:
            return f"{path}: {error.strerror}"
        return f"{Path(path).name} goes with your next line."

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
            raise InvalidRequest("/topk needs an integer")
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
        raise InvalidRequest(f"{name} needs a number") from None
    if not least <= value <= most:
        raise InvalidRequest(f"{name} needs a number from {least:g} to {most:g}")
    return value


def _shown(value: float | None) -> str:
    return "the model's default" if value is None else f"{value:g}"
