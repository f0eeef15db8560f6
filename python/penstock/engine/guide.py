"""One sequence's way through its grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher

NOT_ALLOWED: Final = "the grammar does not allow the token that was drawn"
TOO_COMPLEX: Final = "the grammar became too complex to follow"


class GrammarGuide:
    """A `scheduler.Guide`. Its matcher is not thread-safe: while masks are being filled, nobody
    else touches it. An exceeded bound of the library ends this sequence only."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    @property
    def error(self) -> str | None:
        if not self.matcher.is_error():
            return None
        # The library's own words quote the grammar's inside; they are for the log.
        return NOT_ALLOWED if "doesn't satisfy" in self.matcher.get_error() else TOO_COMPLEX

    def accept(self, token_id: int) -> bool:
        return self.matcher.consume_token(token_id)

    def force(self, room: int) -> Sequence[int]:
        if room <= 0:
            return ()
        forced = self.matcher.compute_ff_tokens()[:room]
        if forced and not self.matcher.consume_tokens(forced):
            return ()
        return forced

    def follow(self, draft: Sequence[int]) -> int:
        tokens = list(draft)
        del tokens[self.matcher.validate_tokens(tokens) :]
        probe = self.matcher.deep_copy()
        for index, token in enumerate(tokens):
            if not probe.consume_token(token) or probe.is_stopped() or probe.compute_ff_tokens():
                return index
        return len(tokens)
