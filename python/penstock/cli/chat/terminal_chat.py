"""The terminal chat: reads questions and commands, and shows answers as they are generated."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Final

from rich.text import Text

from penstock.api.chats.answer_fold import AnswerFold
from penstock.base.errors import ModelError, ServiceError
from penstock.cli.chat.answer_view import AnswerView
from penstock.cli.chat.backend import Backend
from penstock.cli.chat.command_context import AnswerAgain, CommandContext, Leave
from penstock.cli.chat.commands import run_command
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.readers import Reader
from penstock.cli.chat.screen import Screen
from penstock.cli.chat.terminal_echo import without_echo
from penstock.cli.chat.tool_views import call_text, file_text, read_decision, result_text
from penstock.dialog import (
    ApprovalRequired,
    Event,
    FileProduced,
    PartEnded,
    PartStarted,
    Reasoning,
    ReasoningDelta,
    RunEnded,
    RunFailed,
    TextDelta,
    ToolCalling,
    ToolCompleted,
)
from penstock.dialog.fold import FailedRun

NO_PERSON: Final = "No person can be asked."


class Chat:
    """One conversation in the terminal.

    `backend`: answers the questions.
    `conversation`: the messages so far, and the settings.
    `reader`: reads questions, commands and decisions.
    `screen`: shows answers and notes.
    """

    def __init__(
        self, backend: Backend, conversation: Conversation, reader: Reader, screen: Screen
    ) -> None:
        self._backend = backend
        self._conversation = conversation
        self._reader = reader
        self._screen = screen
        self._context = CommandContext(conversation, backend, screen)
        self._interrupted = False

    async def answer_once(self, text: str) -> None:
        """Show the answer to `text`. Raises ServiceError on failure and KeyboardInterrupt after
        Ctrl-C."""
        self._conversation.ask(text)
        if not await self._answer():
            raise KeyboardInterrupt

    async def talk(self) -> None:
        """Read and answer lines until /exit or the end of the input."""
        model = self._backend.model
        hint = f"  {model.place}; /help lists the commands, /exit leaves"
        self._screen.notes.print(Text.assemble((model.name, "bold"), hint))
        while True:
            try:
                line = await self._reader.line()
            except EOFError:
                return
            if line and not await self._obey(line):
                return

    async def _obey(self, line: str) -> bool:
        """Run a command or answer a question. Returns False if the chat ends."""
        try:
            if not line.startswith("/"):
                self._conversation.ask(line)
                await self._answer()
                return True
            match await run_command(self._context, line):
                case Leave():
                    return False
                case AnswerAgain():
                    await self._answer()
                case str() as text:
                    self._screen.note(text)
        except (ServiceError, ModelError) as error:
            self._screen.error(str(error))
        return True

    async def _answer(self) -> bool:
        """Show the answer to the last question and append it to the conversation. Returns False if
        Ctrl-C interrupted it."""
        fold = AnswerFold(self._conversation.keep_file)
        view = self._screen.answer_view()
        task = asyncio.create_task(self._show(fold, view))
        self._interrupted = False
        try:
            with self._interrupts(task), without_echo():
                await task
        except asyncio.CancelledError:
            if not self._interrupted:
                raise
            fold.end("stopped")
            self._screen.notes.print(" [stopped]", style="dim", markup=False)
        finally:
            self._conversation.keep(fold.blocks, fold.info)
        return not self._interrupted

    @contextmanager
    def _interrupts(self, task: asyncio.Task[Any]) -> Iterator[None]:
        """Context manager in which Ctrl-C cancels `task`."""
        self._cancel_on_interrupt(task)
        try:
            yield
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    def _cancel_on_interrupt(self, task: asyncio.Task[Any]) -> None:
        def interrupt() -> None:
            self._interrupted = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupt)

    async def _show(self, fold: AnswerFold, view: AnswerView) -> None:
        turn = await self._conversation.turn()
        has_ended = False
        try:
            async with aclosing(self._backend.run(turn)) as events:
                async for event in events:
                    await fold.add(event)
                    await self._show_event(event, view)
                    has_ended = has_ended or isinstance(event, RunEnded)
        finally:
            if not has_ended:
                view.stop()

    async def _show_event(self, event: Event, view: AnswerView) -> None:
        match event:
            case PartStarted(kind="text" | "reasoning"):
                view.begin_text()
            case TextDelta():
                view.text(event.text)
            case ReasoningDelta():
                view.reasoning(event.text)
            case PartEnded(value=Reasoning()):
                view.end_reasoning()
            case RunFailed():
                raise FailedRun(event)
            case RunEnded():
                view.end()
            case ToolCalling():
                self._pause(view)
                self._screen.note("\n" + call_text(event.tool, event.activity))
            case ToolCompleted():
                self._screen.note(result_text(event.run))
            case FileProduced():
                self._context.files[event.file.name] = event.file
                self._screen.note(file_text(event.file))
            case ApprovalRequired():
                await self._decide(event.approval_id)
            case _:
                pass

    def _pause(self, view: AnswerView) -> None:
        """End the line of the answer if a note follows on the same output."""
        if self._screen.notes is self._screen.console:
            view.pause()

    async def _decide(self, approval_id: str) -> None:
        """Ask for a decision on the call that was shown last."""
        if not self._reader.can_ask:
            await self._backend.decide(approval_id, "deny", NO_PERSON, remember=False)
            return
        try:
            with self._editing():
                decision, message, remember = await read_decision(self._reader.answer)
        except KeyboardInterrupt:
            self._interrupted = True
            raise asyncio.CancelledError from None
        await self._backend.decide(approval_id, decision, message, remember=remember)

    @contextmanager
    def _editing(self) -> Iterator[None]:
        """Context manager in which the line editor handles Ctrl-C; afterwards it cancels the
        current task again."""
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        try:
            yield
        finally:
            self._cancel_on_interrupt(task)
