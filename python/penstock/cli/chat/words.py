"""The words that the Tab key completes."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.cli.chat.backend import Backend
from penstock.cli.chat.chat_settings import FIELDS


def words_for(backend: Backend, kind: str) -> Sequence[str]:
    """Return the words for an argument of a kind of `commands.Completes`."""
    match kind:
        case "model":
            return [choice.name for choice in backend.choices]
        case "adapter":
            return backend.model.adapters
        case "setting":
            return FIELDS
        case "tool":
            return backend.model.tools
        case _:
            return ()
