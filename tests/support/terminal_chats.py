"""A terminal chat whose answers and typed lines are scripted."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Iterable, Sequence

from rich.console import Console

from penstock.cli.chat.backend import ActiveModel, Decision, ModelChoice
from penstock.cli.chat.command_context import CommandContext, Outcome
from penstock.cli.chat.commands import run_command
from penstock.cli.chat.conversation import Conversation, Turn
from penstock.cli.chat.local_backend import request_of
from penstock.cli.chat.screen import Screen
from penstock.cli.chat.terminal_chat import Chat
from penstock.dialog import Event
from tests.support.servers.http_server import Script, ScriptedLoop


class ScriptedBackend:
    """Plays a script for each turn, in place of an engine.

    `requests`: the requests so far. `decided`: the decisions on approvals.
    """

    def __init__(self, script: Script) -> None:
        self.loop = ScriptedLoop(script)
        self.requests = self.loop.requests
        self.decided: list[tuple[str, Decision, str | None, bool]] = []
        self.model = ActiveModel(
            "scripted", "in this process", {"temperature": 0.7}, ("sql",), ("shell",)
        )
        self.choices: Sequence[ModelChoice] = (
            ModelChoice("scripted", "loaded"),
            ModelChoice("other", "not downloaded"),
        )

    async def run(self, turn: Turn) -> AsyncGenerator[Event, None]:
        answer = self.loop.run(request_of(turn))
        try:
            async for event in answer:
                yield event
        finally:
            await answer.aclose()

    async def use(self, name: str) -> None:
        self.model = ActiveModel(name, "in this process")

    async def decide(
        self, id: str, decision: Decision, message: str | None, *, remember: bool
    ) -> None:
        self.decided.append((id, decision, message, remember))

    async def close(self) -> None:
        pass


class ScriptedReader:
    """Gives the lines of a person, then the end of the input. `unread`: the lines that are left."""

    def __init__(self, lines: Iterable[str] = (), answers: Iterable[str] | None = None) -> None:
        self.unread = list(lines)
        self._answers = list(answers or ())
        self.can_ask = answers is not None
        self.questions: list[str] = []

    async def line(self) -> str:
        if not self.unread:
            raise EOFError
        return self.unread.pop(0)

    async def answer(self, question: str) -> str:
        self.questions.append(question)
        return self._answers.pop(0)


class ChatBench:
    """A chat over a script. `terminal`: the output is a terminal. `out`, `notes`: the outputs."""

    def __init__(
        self,
        script: Script,
        lines: Iterable[str] = (),
        answers: Iterable[str] | None = None,
        *,
        terminal: bool = False,
        markdown: bool = False,
        notes_apart: bool = False,
    ) -> None:
        self.backend = ScriptedBackend(script)
        self.requests = self.backend.requests
        self.conversation = Conversation()
        self.reader = ScriptedReader(lines, answers)
        self._out, self._notes = io.StringIO(), io.StringIO()
        console = Console(file=self._out, force_terminal=terminal, width=40, _environ={})
        notes = Console(file=self._notes, width=80, _environ={}) if notes_apart else None
        self.screen = Screen(console, notes, renders_markdown=markdown)
        self.chat = Chat(self.backend, self.conversation, self.reader, self.screen)
        self.context = CommandContext(self.conversation, self.backend, self.screen)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def notes(self) -> str:
        return self._notes.getvalue()

    def ask(self, text: str) -> None:
        asyncio.run(self.chat.answer_once(text))

    def talk(self) -> None:
        asyncio.run(self.chat.talk())

    def command(self, line: str) -> Outcome:
        return asyncio.run(run_command(self.context, line))
