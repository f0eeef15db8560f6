"""What steers one sequence: its way through a grammar, or how long it must become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

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


class MinTokensGuide:
    """A `scheduler.Guide` that keeps `stop_token_ids` back until `min_tokens` were drawn."""

    error: Final = None
    ended: Final = False

    def __init__(self, min_tokens: int, stop_token_ids: frozenset[int]) -> None:
        self.missing = min_tokens
        self._stop_token_ids = stop_token_ids

    def accept(self, token_id: int) -> bool:
        self.missing = max(0, self.missing - 1)
        return True

    def force(self, room: int) -> Sequence[int]:
        return ()

    def follow(self, draft: Sequence[int]) -> int:
        for index, token_id in enumerate(draft[: self.missing]):
            if token_id in self._stop_token_ids:
                return index
        return len(draft)

    def fill(self, mask: npt.NDArray[np.uint32]) -> None:
        """Set the bits of all tokens but those kept back. `mask`: [ceil(V / 32)]."""
        mask.fill(0xFFFFFFFF)
        for token_id in self._stop_token_ids:
            if token_id < 32 * len(mask):
                mask[token_id // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token_id % 32))
