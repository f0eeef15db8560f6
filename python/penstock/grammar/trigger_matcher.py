"""Looks in the tokens of an answer for the place where its grammar starts to bind."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import Final

from penstock.grammar.types import GrammarTriggers

_BEFORE_BYTES: Final = 192
"""So much of what stands before a mark is told, too: a call may have begun in it."""


class TriggerMatcher:
    """Reads one answer token by token. `bytes_of`: the bytes of a token, the name of a control
    token. A token costs a search in a few bytes."""

    __slots__ = ("_bytes_of", "_close", "_first", "_looked", "_marks", "_open", "_overlap",
                 "_sizes", "_start", "_text", "_thinking", "_tokens")  # fmt: skip

    def __init__(self, triggers: GrammarTriggers, bytes_of: Callable[[int], bytes]) -> None:
        marks = [text.encode() for text in triggers.texts]
        self._bytes_of = bytes_of
        self._marks = re.compile(b"|".join(map(re.escape, marks)) or rb"(?!)")
        self._first = triggers.first.encode()
        self._overlap = max(map(len, marks), default=1) - 1
        self._looked = 0  # no mark begins before it in the text
        self._open, self._close = (
            triggers.reasoning_open.encode(),
            triggers.reasoning_close.encode(),
        )
        self._thinking: bool | None = triggers.reasoning_opened or (None if self._open else False)
        self._start = True
        self._text = b""
        self._tokens: list[int] = []
        self._sizes: list[int] = []

    def copy(self) -> TriggerMatcher:
        """A watch that goes on from here by itself."""
        twin = copy.copy(self)
        twin._tokens, twin._sizes = list(self._tokens), list(self._sizes)
        return twin

    def push(self, token_id: int) -> Sequence[int] | None:
        """The last tokens, up to this one, that the grammar has to be told of, if it binds from
        here on; else None."""
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
        """Look on in tokens that do not follow those that were read."""
        self._start = False
        self._drop(len(self._text))

    def _begins_with_reasoning(self) -> bool | None:
        """None where that is not known yet."""
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
        if self._start and (head := self._text.lstrip()):
            self._start = False
            if head[:1] in self._first and self._first:
                self._drop(len(self._text) - len(head))
                return list(self._tokens)
        match = self._marks.search(self._text, self._looked)
        if match is not None:
            self._drop(match.start() - _BEFORE_BYTES)
            self._looked = len(self._text)
            return list(self._tokens)
        self._looked = max(self._looked, len(self._text) - self._overlap)
        if not self._start:
            self._drop(self._looked - _BEFORE_BYTES)
        return None

    def _drop(self, count: int) -> None:
        """Forget the first bytes, and the tokens that lie in them. A token that only begins there
        is kept whole."""
        dropped = 0
        while self._sizes and dropped + self._sizes[0] <= count:
            dropped += self._sizes.pop(0)
            del self._tokens[0]
        if count > dropped and self._sizes:
            self._sizes[0] -= count - dropped
        self._text = self._text[max(count, 0) :]
        self._looked = max(0, self._looked - max(count, 0))
