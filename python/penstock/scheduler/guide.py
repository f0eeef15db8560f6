"""The interface of a grammar that constrains a sequence, as the scheduler uses it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Guide(Protocol):
    """Follows the tokens of one sequence through a grammar. It stays valid if the sequence is
    preempted, because the tokens stay known."""

    @property
    def ended(self) -> bool:
        """Whether the grammar has ended, so that no further token may follow."""

    @property
    def idle(self) -> bool:
        """Whether any two tokens may come next, because the grammar does not constrain the sequence
        now."""

    @property
    def error(self) -> str | None:
        """The error message for the client if the sequence violates the grammar, else None."""

    def may_end(self, token_id: int) -> bool:
        """Return whether the stop token `token_id` may end the sequence now. If not, set
        `error`."""

    def accept(self, token_id: int) -> bool:
        """Advance by the sampled `token_id`. If the grammar does not allow it, set `error` and
        return False."""

    def force(self, room: int, stops: Collection[int] = ()) -> Sequence[int]:
        """Return the next tokens, up to `room` or the first of `stops`, for which the grammar
        allows only one continuation, and advance past them. A stop token is sampled instead, so
        that it ends the answer."""

    def follow(self, draft: Sequence[int]) -> int:
        """Return how many tokens at the start of `draft` could be sampled one after another: the
        grammar allows each of them and, after each, neither forces a token nor ends. Does not
        advance."""
