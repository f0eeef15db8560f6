"""What a step made of each sequence: tokens that join it, its end, its progress."""

from __future__ import annotations

from collections.abc import Sequence as List

from penstock.scheduler.cache import BlockCache
from penstock.scheduler.sequence import FinishReason, Progress, Sequence
from penstock.scheduler.types import Chunk, Drawn


class Harvest:
    """Takes in what was drawn, and counts. `keeps_cache` False: a step leaves nothing computed."""

    def __init__(self, cache: BlockCache, *, keeps_cache: bool) -> None:
        self._cache = cache
        self._keeps_cache = keeps_cache
        self.completed: dict[FinishReason, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.forced_tokens = 0
        self.drafted_tokens = 0
        self.confirmed_tokens = 0

    def take(
        self, sequence: Sequence, chunk: Chunk, drawn: List[Drawn], progress: list[Progress]
    ) -> bool:
        """The chunk of a sequence was computed, and `drawn` of it if it samples: the token after
        the known ones, and one more after each draft token that it confirmed. True: the sequence is
        finished."""
        if drawn and drawn[0].failed:
            return self._fail(sequence, drawn[0], progress)
        if self._keeps_cache:
            sequence.computed += chunk.length
            self._cache.publish(sequence)
        if not drawn:
            return False
        sequence.decoding = True
        if chunk.draft:
            self._learn(sequence, len(chunk.draft), len(drawn) - 1)
        for token_id in sequence.unreported:
            self._report(sequence, token_id, None, None, progress)
        sequence.unreported.clear()
        for index, one in enumerate(drawn):
            assert one.row == sequence.row, "tokens drawn out of the plan's order"
            if one.failed:
                return self._fail(sequence, one, progress)
            if index:
                sequence.computed += 1  # the draft token before it, computed in the same step
            if self._join(sequence, one, progress, last=one is drawn[-1]):
                return True
        return False

    def _learn(self, sequence: Sequence, drafted: int, confirmed: int) -> None:
        assert sequence.speculation is not None and confirmed <= drafted
        sequence.speculation.learn(drafted, confirmed)
        self.drafted_tokens += drafted
        self.confirmed_tokens += confirmed

    def _join(
        self, sequence: Sequence, drawn: Drawn, progress: list[Progress], *, last: bool
    ) -> bool:
        """A drawn token joins, and after the last one what it leaves no choice about."""
        if drawn.token_id in sequence.stop_token_ids:
            return self._report(sequence, None, drawn, "stop", progress)
        guide = sequence.guide
        if guide is not None and not guide.accept(drawn.token_id):
            return self._report(sequence, None, drawn, "error", progress)
        sequence.tokens.append(drawn.token_id)
        finish = _finish(sequence)
        forced = sequence.force() if finish is None and last else ()
        if not forced:
            return self._report(sequence, drawn.token_id, drawn, finish, progress)
        sequence.unsent += len(forced)
        self._report(sequence, drawn.token_id, drawn, None, progress)
        for token_id in forced[:-1]:
            self._report(sequence, token_id, None, None, progress)
        return self._report(sequence, forced[-1], None, _finish(sequence), progress)

    def _fail(self, sequence: Sequence, drawn: Drawn, progress: list[Progress]) -> bool:
        self._cache.withdraw(sequence)
        return self._report(sequence, None, drawn, "error", progress)

    def _report(
        self,
        sequence: Sequence,
        token_id: int | None,
        drawn: Drawn | None,
        finish: FinishReason | None,
        progress: list[Progress],
    ) -> bool:
        """`drawn` None: the token was forced. True: the sequence is finished."""
        self.forced_tokens += drawn is None
        cached_tokens = None if sequence.reported else sequence.cached_tokens
        sequence.reported = True
        logprob: float | None = None
        top: tuple[tuple[int, float], ...] = ()
        if token_id is not None and drawn is not None:
            logprob, top = drawn.logprob, drawn.top
        error = sequence.guide.error if finish == "error" and sequence.guide is not None else None
        progress.append(Progress(sequence.id, token_id, logprob, top, cached_tokens, finish, error))
        if finish is None:
            return False
        self.completed[finish] += 1
        return True


def _finish(sequence: Sequence) -> FinishReason | None:
    if sequence.guide is not None and sequence.guide.ended:
        return "stop"
    return "length" if len(sequence.tokens) == sequence.known_limit else None
