"""The output of a terminal chat: answers as text or as rendered Markdown, and notes."""

from __future__ import annotations

from base64 import b64encode

from rich.console import Console

from penstock.cli.chat.answer_view import AnswerView, PlainView


class Screen:
    """The two outputs of a chat.

    `console`: shows the answers.
    `notes`: shows all other output, with the calls of tools; None: `console`.
    `renders_markdown`: whether answers on a terminal are rendered.
    """

    def __init__(
        self, console: Console, notes: Console | None = None, *, renders_markdown: bool = True
    ) -> None:
        self.console = console
        self.notes = notes or console
        self._renders_markdown = renders_markdown and console.is_terminal
        self._renders_markdown &= not console.is_dumb_terminal

    def answer_view(self) -> AnswerView:
        """Return the view for the next answer."""
        if not self._renders_markdown:
            return PlainView(self.console)
        from penstock.cli.chat.markdown_view import MarkdownView

        return MarkdownView(self.console)

    def note(self, text: str) -> None:
        """Show a text that is not part of an answer."""
        self.notes.print(
            text, style="dim", markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def error(self, text: str) -> None:
        """Show why an answer or a command failed."""
        self.notes.print(
            text, style="red", markup=False, highlight=False, emoji=False, soft_wrap=True
        )

    def copy(self, text: str) -> bool:
        """Ask the terminal to put a text on the clipboard (OSC 52). Returns False without a
        terminal."""
        if not self.notes.is_terminal:
            return False
        data = b64encode(text.encode()).decode()
        self.notes.file.write(f"\x1b]52;c;{data}\x07")
        self.notes.file.flush()
        return True
