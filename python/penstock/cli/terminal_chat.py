"""The terminal chat: reads lines and shows answers as they are generated."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final, Literal, Protocol

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from penstock.base.errors import ServiceError
from penstock.cli.chat_state import Conversation, ExitChat
from penstock.cli.tool_views import call_text, escaped, file_text, read_decision, result_text
from penstock.dialog import (
    ApprovalRequired,
    Event,
    FileProduced,
    GenerateRequest,
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
from penstock.dialog.server_tools import ProducedFile

PROMPT: Final = "> "
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Loop(Protocol):
    """Answers a request with a stream of events."""

    def run(self, request: GenerateRequest) -> AsyncGenerator[Event, None]: ...


class Decide(Protocol):
    """Decides on an approval. Returns False if it is unknown or decided."""

    def __call__(
        self,
        id: str,
        decision: Literal["approve", "deny"],
        message: str | None = None,
        *,
        remember: bool = False,
    ) -> bool: ...


class Chat:
    """One conversation in the terminal.

    `loop`: the event loop; it runs only during an answer, so that input() handles Ctrl-C, Ctrl-D
    and history.
    `agent`: answers the requests.
    `conversation`: the messages so far.
    `console`: shows the answers.
    `notes`: shows all other output, with the calls of tools; None: `console`.
    `decide`: decides on a call of a tool that waits for an approval.
    `prompt`: written to standard output before a line is read; "" keeps standard output for answers
    only.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        agent: Loop,
        conversation: Conversation,
        console: Console,
        notes: Console | None = None,
        prompt: str = PROMPT,
        decide: Decide | None = None,
    ) -> None:
        self._decide = decide
        self._files: dict[str, ProducedFile] = {}
        self._loop = loop
        self._agent = agent
        self._conversation = conversation
        self._console = console
        self._notes = notes or console
        self._prompt = prompt

    def answer_once(self, text: str) -> None:
        """Show the answer to `text`. Raises ServiceError on failure and KeyboardInterrupt after
        Ctrl-C."""
        if not self._answer(text):
            raise KeyboardInterrupt

    def talk(self, model_name: str) -> None:
        """Read and answer lines until /exit or the end of input."""
        hint = "  /help lists the commands, /exit quits"
        self._notes.print(Text.assemble((model_name, "bold"), hint))
        for line in self._lines():
            try:
                if line.startswith("/save"):
                    self._note(self._save(line.removeprefix("/save").strip()))
                elif line.startswith("/"):
                    self._notes.print(self._conversation.command(line), style="dim", markup=False)
                else:
                    self._answer(line)
            except ExitChat:
                return
            except ServiceError as error:
                self._notes.print(error.message, style="red", markup=False)

    def _lines(self) -> Iterator[str]:
        if sys.stdin.isatty():
            # readline gives input() history and line editing. input() gets the prompt, because
            # readline must redraw it.
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401
        while True:
            try:
                if not self._prompt and sys.stdin.isatty():
                    self._notes.print(PROMPT, end="")
                line = input(self._prompt).strip()
            except EOFError:
                self._notes.print()
                return
            except KeyboardInterrupt:
                self._notes.print("\n/exit quits", style="dim")
                continue
            if line:
                yield line

    def _answer(self, text: str) -> bool:
        """Show the answer to `text` and append both to the conversation. Returns False if Ctrl-C
        interrupted the answer."""
        shown: list[str] = []
        complete = True
        task = self._loop.create_task(self._show(text, shown))
        self._loop.add_signal_handler(signal.SIGINT, task.cancel)
        try:
            self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            complete = False
            self._notes.print(" [stopped]", style="dim", markup=False)
        finally:
            self._loop.remove_signal_handler(signal.SIGINT)
        self._conversation.keep(text, "".join(shown))
        return complete

    async def _show(self, text: str, shown: list[str]) -> None:
        in_line = False  # whether the last line of the output has text of the answer
        async with contextlib.aclosing(self._agent.run(self._conversation.request(text))) as events:
            async for event in events:
                match event:
                    case PartStarted(kind="text") if shown:
                        shown.append("\n\n")
                        if in_line:
                            self._write("\n", None)
                    case TextDelta():
                        shown.append(event.text)
                        in_line = not event.text.endswith("\n")
                        self._write(event.text, None)
                    case ReasoningDelta():
                        self._write(event.text, "dim italic")
                    case PartEnded(value=Reasoning()):
                        self._write("\n\n", None)
                    case RunFailed():
                        raise FailedRun(event)
                    case RunEnded():
                        self._write("\n", None)
                    case ToolCalling():
                        in_line = in_line and self._notes is not self._console
                        self._note("\n" + call_text(event.tool, event.activity))
                    case ToolCompleted():
                        self._note(result_text(event.run))
                    case FileProduced():
                        self._files[event.file.name] = event.file
                        self._note(file_text(event.file))
                    case ApprovalRequired():
                        self._ask(event.approval_id)
                    case _:
                        pass

    def _ask(self, approval_id: str) -> None:
        """Ask for a decision on the call that was shown last. The event loop waits meanwhile."""
        assert self._decide is not None
        if not (sys.stdin.isatty() and self._notes.is_terminal):
            self._decide(approval_id, "deny", "No person can be asked.")
            return
        self._loop.remove_signal_handler(signal.SIGINT)  # Ctrl-C ends input()
        try:
            decision, message, remember = read_decision(input)
        except KeyboardInterrupt:
            raise asyncio.CancelledError from None
        finally:
            task = asyncio.current_task(self._loop)
            assert task is not None
            self._loop.add_signal_handler(signal.SIGINT, task.cancel)
        self._decide(approval_id, decision, message, remember=remember)

    def _save(self, name: str) -> str:
        """Write a produced file to the current folder, and return the text to show."""
        file = self._files.get(name)
        if file is None:
            return f"No tool made a file {escaped(name)!r}."
        data = file.data if file.text is None else file.text.encode()
        if data is None:
            return f"The content of {escaped(name)} was not kept."
        target = Path(Path(name).name)
        try:
            with target.open("xb") as out:
                out.write(data)
        except OSError as error:
            return f"{escaped(target.name)}: {error.strerror}"
        return f"Wrote {escaped(target.name)}."

    def _note(self, text: str) -> None:
        self._notes.print(text, style="dim", markup=False, highlight=False, emoji=False)

    def _write(self, text: str, style: str | None) -> None:
        """Write text, on a terminal without control characters. Does not use rich's markup, which
        would replace tabs and emoji names."""
        if self._console.is_terminal:
            text = CONTROL_CHARACTERS.sub("", text)
        segment = Segment(text, Style.parse(style) if style else None)
        self._console.print(Segments([segment]), soft_wrap=True)
