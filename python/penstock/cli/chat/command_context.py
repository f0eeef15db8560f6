"""The state of a chat, which its commands read and change, and the outcomes of commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.cli.chat.backend import Backend
from penstock.cli.chat.conversation import Conversation
from penstock.cli.chat.screen import Screen
from penstock.dialog.server_tools import ProducedFile


@dataclass
class CommandContext:
    """The chat as commands see it.

    `files`: the files that tools made, by name.
    """

    conversation: Conversation
    backend: Backend
    screen: Screen
    files: dict[str, ProducedFile] = field(default_factory=dict)


@dataclass(frozen=True)
class Leave:
    """The chat ends."""


@dataclass(frozen=True)
class AnswerAgain:
    """The last question is answered again."""


Outcome: TypeAlias = str | Leave | AnswerAgain
"""A text to show, or another outcome of a command."""
