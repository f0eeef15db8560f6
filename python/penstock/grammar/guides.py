"""What steers one sequence: its way through a grammar, from the start or from where a call
begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.grammar.trigger_matcher import TriggerMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

NOT_ALLOWED: Final = "the grammar does not allow the token that was drawn"
TOO_COMPLEX: Final = "the grammar became too complex to follow"
DEAD_END: Final = "the grammar allows nothing that could follow, and may not end there"


class GrammarGuide:
    """A `scheduler.Guide`. Its matcher is not thread-safe: while masks are being filled, nobody
    else touches it. An exceeded bound of the library ends this sequence only. `end_ids`: the tokens
    that end an answer where the grammar may end, and, as the library has it, where it leads
    nowhere."""

    idle: Final = False

    def __init__(self, matcher: LLMatcher, end_ids: frozenset[int] = frozenset()) -> None:
        self.matcher = matcher
        self._end_ids = end_ids

    @property
    def ended(self) -> bool:
        return self.matcher.is_stopped()

    def may_end(self, token_id: int) -> bool:
        return token_id not in self._end_ids or self.matcher.is_accepting()

    @property
    def error(self) -> str | None:
        if self.matcher.is_stopped() and not self.matcher.is_accepting():
            return self._fault()
        return None

    def _fault(self) -> str:
        # The library's own words quote the grammar's inside; they are for the log.
        words = self.matcher.get_error()
        if "doesn't satisfy" in words:
            return NOT_ALLOWED
        return DEAD_END if not words or "NoExtension" in words else TOO_COMPLEX

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


class LazyGrammarGuide:
    """A `scheduler.Guide` that binds a sequence from where `watch` finds that a call begins; before
    that it masks nothing. It never ends a sequence: one that does not follow the grammar, which a
    step that was planned ahead can bring about, is free until the next call. `start`: the grammar
    at its start, which stays as it is.
    """

    error: Final = None
    ended: Final = False

    def __init__(self, start: LLMatcher, watch: TriggerMatcher) -> None:
        self._start = start
        self._watch = watch
        self._just_woken = False
        self.bound: GrammarGuide | None = None

    @property
    def idle(self) -> bool:
        return self.bound is None

    def may_end(self, token_id: int) -> bool:
        return True

    def accept(self, token_id: int) -> bool:
        if self.bound is None:
            self._look(token_id)
            return True
        self._just_woken = False
        matcher = self.bound.matcher
        if matcher.try_consume_tokens([token_id]) != 1 or matcher.is_stopped():
            self.bound = None
            self._watch.forget()
        return True

    def force(self, room: int) -> Sequence[int]:
        # The step after the one that woke it may be under way already: it draws one token.
        if self.bound is None or self._just_woken:
            return ()
        return self.bound.force(room)

    def follow(self, draft: Sequence[int]) -> int:
        if self.bound is not None:
            return self.bound.follow(draft)
        probe = self._watch.copy()
        for index, token in enumerate(draft):
            if probe.push(token) is not None:
                return index
        return len(draft)

    def _look(self, token_id: int) -> None:
        tokens = self._watch.push(token_id)
        while tokens:
            matcher = self._start.deep_copy()
            taken = matcher.try_consume_tokens(list(tokens))
            if taken == len(tokens):
                self.bound = GrammarGuide(matcher)
                self._just_woken = True
                return
            tokens = tokens[max(taken, 1) :]  # no call has begun before what it does not allow
