"""Applies the result of a step to its sequences: appends tokens, ends sequences, reports
progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as List

from penstock.scheduler.block_cache import BlockCache
from penstock.scheduler.sequence import FinishReason, Progress, Sequence
from penstock.scheduler.types import Chunk, DraftSource, SampledToken, Scored


class OutputProcessor:
    """Appends sampled tokens to sequences, reports their progress and counts them. `keeps_cache`:
    False if computed tokens are not kept between steps."""

    def __init__(self, cache: BlockCache, *, keeps_cache: bool) -> None:
        self._cache = cache
        self._keeps_cache = keeps_cache
        self.completed: dict[FinishReason, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.generated_tokens = 0
        self.forced_tokens = 0
        self.draft_tokens: Counter[DraftSource] = Counter()
        self.accepted_tokens: Counter[DraftSource] = Counter()

    def process(
        self,
        sequence: Sequence,
        chunk: Chunk,
        sampled: List[SampledToken],
        scored: tuple[Scored, ...],
        progress: list[Progress],
    ) -> bool:
        """Apply the result of one chunk. Return True if the sequence is finished.

        `sampled`: one sampled token, and one more for each accepted draft token; empty if the chunk
        does not sample.
        `scored`: prompt tokens with log-probabilities.
        `progress`: the list to which the progress is added.
        """
        assert len(scored) == chunk.num_scores, "scores that the plan did not ask for"
        if (sampled and sampled[0].failed) or any(math.isnan(one.logprob) for one in scored):
            return self._fail(sequence, progress)
        if self._keeps_cache:
            self._cache.publish(sequence)
            self._cache.publish_state(sequence, chunk)
        if scored:
            sequence.next_score += len(scored)
            if sequence.unscored:  # a whole media span has more tokens than a step has scores
                sequence.computed = min(sequence.computed, sequence.next_score)
            self._report(sequence, progress, scored=scored)
        if not sampled:  # with max_tokens 0 a prompt ends once it is computed and scored
            if chunk.start + chunk.length < sequence.known_limit or sequence.unscored:
                return False
            return self._report(sequence, progress, finish="length")
        if chunk.draft_tokens:
            self._learn(sequence, len(chunk.draft_tokens), len(sampled) - 1)
        for token_id in sequence.unreported:
            self._report_forced(sequence, progress, token_id)
        sequence.unreported.clear()
        for index, one in enumerate(sampled):
            assert one.row == sequence.row, "tokens sampled out of the plan's order"
            if one.failed:
                return self._fail(sequence, progress)
            if index:
                sequence.computed += 1  # the draft token before this one, computed in the same step
            if self._append_token(sequence, one, progress, last=one is sampled[-1]):
                return True
        return False

    def _learn(self, sequence: Sequence, proposed: int, accepted: int) -> None:
        assert sequence.speculator is not None and accepted <= proposed
        sequence.speculator.learn(proposed, accepted)
        self.draft_tokens[sequence.speculator.proposed] += proposed
        self.accepted_tokens[sequence.speculator.proposed] += accepted

    def _append_token(
        self, sequence: Sequence, sampled: SampledToken, progress: list[Progress], *, last: bool
    ) -> bool:
        """Append a sampled token and, after the `last` one of the step, the tokens that the grammar
        forces. Return True if the sequence is finished."""
        guide = sequence.guide
        if sampled.token_id in sequence.stop_token_ids:
            may_end = guide is None or guide.may_end(sampled.token_id)
            return self._report(sequence, progress, finish="stop" if may_end else "error")
        if guide is not None and not guide.accept(sampled.token_id):
            return self._report(sequence, progress, finish="error")
        sequence.tokens.append(sampled.token_id)
        finish = _finish(sequence)
        forced = sequence.force() if finish is None and last else ()
        ended = self._report(
            sequence, progress, sampled.token_id, sampled.logprob, sampled.top, finish=finish
        )
        if not forced:
            return ended
        sequence.unsent += len(forced)
        for token_id in forced[:-1]:
            self._report_forced(sequence, progress, token_id)
        return self._report_forced(sequence, progress, forced[-1], _finish(sequence))

    def _fail(self, sequence: Sequence, progress: list[Progress]) -> bool:
        self._cache.withdraw(sequence)
        return self._report(sequence, progress, finish="error")

    def _report_forced(
        self,
        sequence: Sequence,
        progress: list[Progress],
        token_id: int,
        finish: FinishReason | None = None,
    ) -> bool:
        """Report a token that the grammar forced. Return True if the sequence is finished."""
        self.forced_tokens += 1
        return self._report(sequence, progress, token_id, finish=finish)

    def _report(
        self,
        sequence: Sequence,
        progress: list[Progress],
        token_id: int | None = None,
        logprob: float | None = None,
        top: tuple[tuple[int, float], ...] = (),
        *,
        finish: FinishReason | None = None,
        scored: tuple[Scored, ...] = (),
    ) -> bool:
        """Add one Progress to `progress`. Return True if the sequence is finished."""
        cached_tokens = None if sequence.reported else sequence.cached_tokens
        sequence.reported = True
        self.generated_tokens += token_id is not None
        error = sequence.guide.error if finish == "error" and sequence.guide is not None else None
        progress.append(
            Progress(
                id=sequence.id,
                token_id=token_id,
                logprob=logprob,
                top=top,
                cached_tokens=cached_tokens,
                finish=finish,
                error=error,
                scored=scored,
            )
        )
        if finish is None:
            return False
        self.completed[finish] += 1
        return True


def _finish(sequence: Sequence) -> FinishReason | None:
    if sequence.guide is not None and sequence.guide.ended:
        return "stop" if sequence.guide.error is None else "error"
    return "length" if len(sequence.tokens) == sequence.known_limit else None
