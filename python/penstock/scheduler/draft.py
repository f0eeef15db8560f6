"""A step in the making, and who its chunks are for."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.scheduler.sequence import Sequence
from penstock.scheduler.speculation import INDEXED_A_STEP
from penstock.scheduler.types import Admit, AppendBlocks, AppendTokens, Chunk


@dataclass(slots=True)
class Draft:
    """`budget`: tokens that the step may still take; `prompt_budget` <= budget: of those, what
    prompts may take. `score_room`: places whose logits the step may still give beside those of the
    rows that draw. `index_room`: tokens that speculation may still index. `work[i]` is the sequence
    of `chunks[i]`. `step`: its number, `whole_budget` its budget before anything was taken.
    `awaits`: the step whose restores must have arrived."""

    budget: int
    prompt_budget: int
    step: int = 0
    whole_budget: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    work: list[Sequence] = field(default_factory=list)
    admissions: list[Admit] = field(default_factory=list)
    blocks: list[AppendBlocks] = field(default_factory=list)
    forced: list[AppendTokens] = field(default_factory=list)
    num_tokens: int = 0
    num_guessed: int = 0
    score_room: int = 0
    index_room: int = INDEXED_A_STEP
    awaits: int = 0

    def __post_init__(self) -> None:
        self.whole_budget = self.budget

    def compute(self, sequence: Sequence, length: int, guess: tuple[int, ...] = ()) -> None:
        """Add the next `length` tokens of `sequence`, and a `guess` at those after them. It draws
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
        assert samples or not guess
        self.chunks.append(
            Chunk(
                row=sequence.row,
                start=start,
                length=length,
                samples=samples,
                draft=guess,
                score_from=first if scores else 0,
                num_scores=scores,
            )
        )
        self.score_room -= scores
        self.work.append(sequence)
        self.num_guessed += len(guess)
        self.num_tokens += length + len(guess)
        self.budget -= length + len(guess)

    def limit_prompts(self, share: int) -> None:
        """Prompts may take `share` of what is left."""
        self.prompt_budget = min(self.budget, share)

    def compute_prompt(self, sequence: Sequence, most: int) -> None:
        """Add up to `most` of the missing tokens of `sequence`: as many as prompts may still take,
        and as can be scored if that is wanted."""
        length = 0 if sequence.leaves else min(sequence.missing, most, self.prompt_budget)
        if sequence.unscored > self.score_room:
            length = min(length, sequence.next_score + self.score_room - sequence.computed)
        if length > 0:
            self._take_prompt(sequence, length)

    def compute_whole(self, sequence: Sequence) -> None:
        """Add all known tokens of `sequence`, for which prompts have room."""
        self._take_prompt(sequence, len(sequence.tokens))

    def _take_prompt(self, sequence: Sequence, length: int) -> None:
        self.compute(sequence, length)
        self.prompt_budget -= length
