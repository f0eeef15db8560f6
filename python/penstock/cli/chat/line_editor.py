"""The line editor of the terminal chat: history, several lines, completion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.shortcuts import CompleteStyle

from penstock.cli.chat.commands import COMMANDS, command_of

PROMPT: Final = "> "
CONTINUATION: Final = "  "
_PROMPT_TEXT: Final = FormattedText([("bold", PROMPT)])


class LineEditor:
    """Reads lines from a person at a terminal.

    `history`: the file of the lines of earlier chats; None: they are forgotten.
    `words`: returns the words that complete an argument of a kind, such as "model".
    `hint`: shows a text after Ctrl-C.
    `output`: the terminal; None: standard output.
    """

    can_ask = True

    def __init__(
        self,
        history: Path | None,
        words: Callable[[str], Sequence[str]],
        hint: Callable[[str], None],
        output: Output | None = None,
    ) -> None:
        self._hint = hint
        self._lines: PromptSession[str] = PromptSession(
            history=open_history(history),
            completer=CommandCompleter(words),
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=CONTINUATION,
            output=output,
        )
        self._answers: PromptSession[str] = PromptSession(output=output)

    async def line(self) -> str:
        try:
            return (await self._lines.prompt_async(_PROMPT_TEXT)).strip()
        except KeyboardInterrupt:
            self._hint("Ctrl-D or /exit leaves")
            return ""

    async def answer(self, question: str) -> str:
        return await self._answers.prompt_async(question)


class CommandCompleter(Completer):
    """Completes the names of commands and their arguments."""

    def __init__(self, words: Callable[[str], Sequence[str]]) -> None:
        self._words = words
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        typed = document.text_before_cursor
        if not typed.startswith("/") or "\n" in typed:
            return
        name, space, argument = typed.partition(" ")
        if not space:
            yield from _matching(name, [f"{command.name} " for command in COMMANDS])
            return
        command = command_of(name)
        if command is None:
            return
        if command.completes == "file":
            inner = Document(argument, len(argument))
            yield from self._paths.get_completions(inner, complete_event)
        elif " " not in argument:
            yield from _matching(argument, self._words(command.completes))


class PrivateHistory(FileHistory):
    """A history in a file that only the user may read. Goes on without the file if it cannot be
    written."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


def open_history(path: Path | None) -> History:
    """Return the history in the file `path`, which is created with its folder; a history in memory
    if this is not possible."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return PrivateHistory(str(path))


def _matching(typed: str, words: Iterable[str]) -> Iterable[Completion]:
    for word in words:
        if word.startswith(typed):
            yield Completion(word, start_position=-len(typed))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        """Send the text, or begin a new line after a backslash."""
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        """Begin a new line."""
        event.current_buffer.insert_text("\n")

    return keys
