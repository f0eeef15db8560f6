"""A grammar that constrains a sequence, as the scheduler sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Guide(Protocol):
    """Follows one sequence token by token. It survives a preemption: the tokens stay known."""

    @property
    def ended(self) -> bool:
        """Whether the sequence is complete, so that no further token may follow."""

    @property
    def idle(self) -> bool:
        """Whether the grammar does not constrain the next two tokens."""

    @property
    def error(self) -> str | None:
        """Error message for the client if the sequence violates the grammar, else None."""

    def may_end(self, token_id: int) -> bool:
        """Return whether the stop token `token_id` may end the sequence here. Otherwise set
        `error`."""

    def accept(self, token_id: int) -> bool:
        """Advance by the sampled `token_id`. Return False and set `error` if it is not allowed."""

    def force(self, room: int) -> Sequence[int]:
        """Return up to `room` tokens that the grammar forces. They count as accepted."""

    def follow(self, draft: Sequence[int]) -> int:
        """Return how many tokens at the start of `draft` could be sampled one after another: each
        is allowed, and after none of them is a token forced or the sequence complete. Do not
        advance."""
