"""What steers the tokens of a sequence from outside: a grammar, seen from the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Guide(Protocol):
    """Follows one sequence token by token. It outlives a preemption: the tokens stay known."""

    @property
    def ended(self) -> bool:
        """Whether no further token may follow."""

    @property
    def idle(self) -> bool:
        """Whether the next token is free, and the one after it, whatever the next one is."""

    @property
    def error(self) -> str | None:
        """Why the sequence cannot go on, for the client; None while it can, and where it has come
        to its end."""

    def may_end(self, token_id: int) -> bool:
        """Whether the sequence may end with this token, which ends it. False: there is an
        `error`."""

    def accept(self, token_id: int) -> bool:
        """`token_id` was sampled and follows. False, with an `error`, if it may not."""

    def force(self, room: int) -> Sequence[int]:
        """The next tokens, at most `room`, if only they may follow; they count as accepted."""

    def follow(self, draft: Sequence[int]) -> int:
        """How many tokens of a draft could be sampled one after the other: each may follow, and
        after
        none of them is anything forced or at its end. Changes nothing."""
