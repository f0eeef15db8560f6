"""Reads the lines of a chat: from a pipe, or from a person."""

from __future__ import annotations

import sys
from typing import Protocol


class Reader(Protocol):
    """Reads questions and commands.

    `can_ask`: whether a person is there to answer questions.
    """

    @property
    def can_ask(self) -> bool: ...

    async def line(self) -> str:
        """Return the next question or command; "" if Ctrl-C dropped it. Raises EOFError at the
        end of the input."""
        ...

    async def answer(self, question: str) -> str:
        """Ask the person a question. Raises EOFError after Ctrl-D and KeyboardInterrupt after
        Ctrl-C."""
        ...


class PipeReader:
    """Reads standard input line by line."""

    can_ask = False

    async def line(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.strip()

    async def answer(self, question: str) -> str:
        raise EOFError
