"""Collects the chunks of a step while it is being planned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from penstock.scheduler.ngram_speculation import MAX_INDEXED_PER_STEP
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.state_saves import StateSaves
from penstock.scheduler.types import NO_SNAPSHOTS, Admit, AppendBlocks, AppendTokens, Chunk


class DraftRequests(Protocol):
    """Asks the drafter of the runtime for draft tokens."""

    @property
    def lags(self) -> bool:
        """Whether the drafter also has to compute tokens of steps in which it was not asked."""

    def ask(self, sequence: Sequence, builder: StepBuilder, chunk: Chunk) -> int:
        """Return `num_drafts` for `chunk`, the next one of `sequence`, and allocate the KV blocks
        of the drafts."""
        ...


@dataclass(slots=True)
class StepBuilder:
    """Collects the chunks, admissions and KV blocks of one step.

    `budget`: tokens left in the step.
    `prefill_budget`: tokens left for prefill, at most `budget`.
    `step`: number of the step.
    `whole_budget`: the budget of the empty step.
    `sequences`: the sequence of each of `chunks`.
    `score_room`: rows of logits left for prompt log-probabilities.
    `index_room`: tokens that n-gram speculation may still index.
    `awaits`: the step whose restores must be complete before this step starts.
    `saves`: plans the snapshots of recurrent states; None without snapshots.
    `drafts`: asks for drafts; None if the step has none.
    """

    budget: int
    prefill_budget: int
    saves: StateSaves | None = None
    drafts: DraftRequests | None = None
    step: int = 0
    whole_budget: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    admissions: list[Admit] = field(default_factory=list)
    blocks: list[AppendBlocks] = field(default_factory=list)
    forced: list[AppendTokens] = field(default_factory=list)
    num_tokens: int = 0
    num_draft_tokens: int = 0
    score_room: int = 0
    index_room: int = MAX_INDEXED_PER_STEP
    awaits: int = 0

    def __post_init__(self) -> None:
        self.whole_budget = self.budget

    def add_chunk(
        self, sequence: Sequence, length: int, draft_tokens: tuple[int, ...] = ()
    ) -> None:
        """Add the next `length` tokens of `sequence`, followed by `draft_tokens`. The chunk samples
        if it ends at the last known token and completes all requested scores. Ask the drafter for
        the drafts of the next step."""
        if sequence.unsent:
            unsent = tuple(sequence.tokens[-sequence.unsent :])
            self.forced.append(AppendTokens(sequence.row, unsent))
            sequence.unsent = 0
        self.awaits = max(self.awaits, sequence.restored_by)
        sequence.restored_by = 0
        start, end, first = sequence.computed, sequence.computed + length, sequence.next_score
        scores = min(sequence.unscored, max(0, end - first), self.score_room)
        complete = end == sequence.known and scores == sequence.unscored
        samples = complete and end < sequence.known_limit
        assert samples or not draft_tokens
        chunk = Chunk(
            row=sequence.row,
            start=start,
            length=length,
            samples=samples,
            draft_tokens=draft_tokens,
            score_from=first if scores else 0,
            num_scores=scores,
            state=NO_SNAPSHOTS if self.saves is None else self.saves.use(sequence, length),
        )
        if self.drafts is not None and (samples or not complete):
            num_drafts = self.drafts.ask(sequence, self, chunk)
            chunk = replace(chunk, num_drafts=num_drafts) if num_drafts else chunk
        self.chunks.append(chunk)
        self.score_room -= scores
        self.sequences.append(sequence)
        self.num_draft_tokens += len(draft_tokens)
        self.num_tokens += length + len(draft_tokens)
        self.budget -= length + len(draft_tokens)

    def limit_prefill(self, share: int) -> None:
        """Limit prefill to `share` tokens of the remaining budget."""
        self.prefill_budget = min(self.budget, share)

    def add_prefill(self, sequence: Sequence, most: int) -> None:
        """Add a prefill chunk with up to `most` missing tokens of `sequence`, within the prefill
        budget and the room for prompt log-probabilities. Only a chunk that must not end inside a
        media span may be longer: it must fit the step."""
        length = 0 if sequence.is_finishing else min(sequence.missing, most, self.prefill_budget)
        if sequence.unscored > self.score_room:
            length = min(length, sequence.next_score + self.score_room - sequence.computed)
        if length > 0 and self.saves is not None:
            length = self.saves.limit(sequence, length)
        if length > 0 and (length := sequence.divisible(length)) <= self.budget:
            self._add_prefill_chunk(sequence, length)

    def add_whole_context(self, sequence: Sequence) -> None:
        """Add all known tokens of `sequence`. The caller has checked that they fit the prefill
        budget."""
        self._add_prefill_chunk(sequence, len(sequence.tokens))

    def _add_prefill_chunk(self, sequence: Sequence, length: int) -> None:
        self.add_chunk(sequence, length)
        self.prefill_budget -= length
