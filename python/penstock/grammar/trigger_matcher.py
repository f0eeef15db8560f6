"""Finds the token of an answer from which on a grammar applies."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.grammar.types import GrammarTriggers

_BEFORE_BYTES: Final = 192
"""Bytes of text before a trigger that are also passed to the grammar, since a call may have started
there."""


class TriggerMatcher:
    """Searches one answer, token by token, for the triggers of a grammar.

    `bytes_of`: returns the bytes of a token, or the name of a control token. Each token costs a
    search in a few bytes.
    """

    __slots__ = (
        "_at_start",
        "_bytes_of",
        "_close",
        "_first",
        "_marks",
        "_open",
        "_overlap",
        "_searched",
        "_sizes",
        "_text",
        "_thinking",
        "_tokens",
    )  # fmt: skip

    def __init__(self, triggers: GrammarTriggers, bytes_of: Callable[[int], bytes]) -> None:
        marks = [text.encode() for text in triggers.texts]
        self._bytes_of = bytes_of
        self._marks = re.compile(b"|".join(map(re.escape, marks)) or rb"(?!)")
        self._first = triggers.first.encode()
        self._overlap = max(map(len, marks), default=1) - 1
        self._searched = 0  # no trigger starts before this offset of the text
        self._open, self._close = (
            triggers.reasoning_open.encode(),
            triggers.reasoning_close.encode(),
        )
        self._thinking: bool | None = triggers.reasoning_opened or (None if self._open else False)
        self._at_start = True
        self._text = b""
        self._tokens: list[int] = []
        self._sizes: list[int] = []

    def copy(self) -> TriggerMatcher:
        """Return a copy in the same state, independent of this matcher."""
        twin = copy.copy(self)
        twin._tokens, twin._sizes = list(self._tokens), list(self._sizes)
        return twin

    def push(self, token_id: int) -> Sequence[int] | None:
        """Read one token. Returns None unless it completes a trigger.

        If it does, returns the latest tokens of the answer, including this token, which the grammar
        must read.
        """
        piece = self._bytes_of(token_id)
        self._text += piece
        self._tokens.append(token_id)
        self._sizes.append(len(piece))
        if self._thinking is None:
            self._thinking = self._begins_with_reasoning()
        if self._thinking:
            self._pass_reasoning()
        if self._thinking is not False:
            return None
        return self._found()

    def forget(self) -> None:
        """Discard the text that was read. The next token is not at the start of the answer."""
        self._at_start = False
        self._drop(len(self._text))

    def _begins_with_reasoning(self) -> bool | None:
        """Whether the answer begins with the opening tag of reasoning; None if the text is too
        short to tell."""
        head = self._text.lstrip()
        if len(head) < len(self._open) and self._open.startswith(head):
            return None
        return head.startswith(self._open)

    def _pass_reasoning(self) -> None:
        at = self._text.find(self._close)
        if at >= 0:
            self._drop(at + len(self._close))
            self._thinking = False
        else:
            self._drop(len(self._text) - len(self._close) + 1)

    def _found(self) -> Sequence[int] | None:
        if self._at_start and (head := self._text.lstrip()):
            self._at_start = False
            if head[:1] in self._first and self._first:
                self._drop(len(self._text) - len(head))
                return list(self._tokens)
        match = self._marks.search(self._text, self._searched)
        if match is not None:
            self._drop(match.start() - _BEFORE_BYTES)
            self._searched = len(self._text)
            return list(self._tokens)
        self._searched = max(self._searched, len(self._text) - self._overlap)
        if not self._at_start:
            self._drop(self._searched - _BEFORE_BYTES)
        return None

    def _drop(self, count: int) -> None:
        """Drop the first `count` bytes of the text and the tokens that end within these bytes."""
        dropped = 0
        while self._sizes and dropped + self._sizes[0] <= count:
            dropped += self._sizes.pop(0)
            del self._tokens[0]
        if count > dropped and self._sizes:
            self._sizes[0] -= count - dropped
        self._text = self._text[max(count, 0) :]
        self._searched = max(0, self._searched - max(count, 0))
