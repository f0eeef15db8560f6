"""Guides: each tracks the position of one sequence in its grammar, which applies from the start of
the answer or from a trigger on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from penstock.grammar.trigger_matcher import TriggerMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

NOT_ALLOWED: Final = "the grammar does not allow the sampled token"
TOO_COMPLEX: Final = "the grammar became too complex to follow"
DEAD_END: Final = "the grammar allows no next token and cannot end here"


class GrammarGuide:
    """A `scheduler.Guide` whose grammar applies from the start of the answer.

    - `matcher`: the grammar's matcher. It is not thread-safe: no other code may use it while masks
      are being filled.
    - `end_ids`: tokens that end an answer. The library allows them if the grammar may end, and also
      if it allows no other token.

    If the sequence exceeds a limit of the library, only this sequence ends.
    """

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
        # Clients must not see the library's messages, which quote internals of the grammar.
        message = self.matcher.get_error()
        if "doesn't satisfy" in message:
            return NOT_ALLOWED
        return DEAD_END if not message or "NoExtension" in message else TOO_COMPLEX

    def accept(self, token_id: int) -> bool:
        return self.matcher.consume_token(token_id)

    def force(self, room: int, stops: Collection[int] = ()) -> Sequence[int]:
        if room <= 0:
            return ()
        tokens = self.matcher.compute_ff_tokens()[:room]
        forced = list(takewhile(lambda token: token not in stops, tokens))
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
    """A `scheduler.Guide` whose grammar applies from a trigger on. Before a trigger, all tokens are
    allowed.

    The guide never ends a sequence. A sequence that leaves the grammar, which can happen in a step
    that was planned ahead, is unconstrained until the next trigger.

    - `start`: a matcher in the grammar's start state, which is copied and not modified.
    - `bound`: the guide of the grammar that applies now, None if no grammar applies.
    """

    error: Final = None
    ended: Final = False

    def __init__(self, start: LLMatcher, triggers: TriggerMatcher) -> None:
        self._start = start
        self._triggers = triggers
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
        matcher = self.bound.matcher
        if matcher.try_consume_tokens([token_id]) != 1 or matcher.is_stopped():
            self.bound = None
            self._triggers.forget()
        return True

    def force(self, room: int, stops: Collection[int] = ()) -> Sequence[int]:
        return () if self.bound is None else self.bound.force(room, stops)

    def follow(self, draft: Sequence[int]) -> int:
        if self.bound is not None:
            return self.bound.follow(draft)
        probe = self._triggers.copy()
        for index, token in enumerate(draft):
            if probe.push(token) is not None:
                return index
        return len(draft)

    def _look(self, token_id: int) -> None:
        tokens = self._triggers.push(token_id)
        while tokens:
            matcher = self._start.deep_copy()
            consumed = matcher.try_consume_tokens(list(tokens))
            if consumed == len(tokens):
                self.bound = GrammarGuide(matcher)
                return
            # The grammar refused a token, so no call started at or before this token.
            tokens = tokens[max(consumed, 1) :]
