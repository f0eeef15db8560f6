"""A step in the making, and who its chunks are for."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.scheduler.ngram_speculation import MAX_INDEXED_PER_STEP
from penstock.scheduler.sequence import Sequence
from penstock.scheduler.types import Admit, AppendBlocks, AppendTokens, Chunk


@dataclass(slots=True)
class StepBuilder:
    """`budget`: tokens that the step may still take; `prefill_budget` <= budget: of those, what
    prompts may take. `score_room`: places whose logits the step may still give beside those of the
    rows that draw. `index_room`: tokens that speculation may still index. `sequences[i]` is the
    sequence
    of `chunks[i]`. `step`: its number, `whole_budget` its budget before anything was taken.
    `awaits`: the step whose restores must have arrived."""

    budget: int
    prefill_budget: int
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
        """Add the next `length` tokens of `sequence`, and a `draft_tokens` at those after them. It
        samples
        when all that is known of it is computed, and scored as far as that is wanted."""
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
        self.chunks.append(
            Chunk(
                row=sequence.row,
                start=start,
                length=length,
                samples=samples,
                draft_tokens=draft_tokens,
                score_from=first if scores else 0,
                num_scores=scores,
            )
        )
        self.score_room -= scores
        self.sequences.append(sequence)
        self.num_draft_tokens += len(draft_tokens)
        self.num_tokens += length + len(draft_tokens)
        self.budget -= length + len(draft_tokens)

    def limit_prefill(self, share: int) -> None:
        """Prompts may take `share` of what is left."""
        self.prefill_budget = min(self.budget, share)

    def add_prefill(self, sequence: Sequence, most: int) -> None:
        """Add up to `most` of the missing tokens of `sequence`: as many as prompts may still take,
        and as can be scored if that is wanted."""
        length = 0 if sequence.is_finishing else min(sequence.missing, most, self.prefill_budget)
        if sequence.unscored > self.score_room:
            length = min(length, sequence.next_score + self.score_room - sequence.computed)
        if length > 0:
            self._add_prefill_chunk(sequence, length)

    def add_whole_context(self, sequence: Sequence) -> None:
        """Add all known tokens of `sequence`, for which prompts have room."""
        self._add_prefill_chunk(sequence, len(sequence.tokens))

    def _add_prefill_chunk(self, sequence: Sequence, length: int) -> None:
        self.add_chunk(sequence, length)
        self.prefill_budget -= length
