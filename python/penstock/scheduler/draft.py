"""A step in the making, and who its chunks are for."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.scheduler.sequence import Sequence
from penstock.scheduler.types import Admit, AppendBlocks, AppendTokens, Chunk


@dataclass(slots=True)
class Draft:
    """`budget`: tokens that the step may still take; `prompt_budget` <= budget: of those, what
    prompts may take. `work[i]` is the sequence of `chunks[i]`."""

    budget: int
    prompt_budget: int
    chunks: list[Chunk] = field(default_factory=list)
    work: list[Sequence] = field(default_factory=list)
    admissions: list[Admit] = field(default_factory=list)
    blocks: list[AppendBlocks] = field(default_factory=list)
    forced: list[AppendTokens] = field(default_factory=list)
    num_tokens: int = 0
    num_guessed: int = 0

    def compute(self, sequence: Sequence, length: int, guess: tuple[int, ...] = ()) -> None:
        """Add the next `length` tokens of `sequence`, and a `guess` at those after them."""
        if sequence.unsent:
            unsent = tuple(sequence.tokens[-sequence.unsent :])
            self.forced.append(AppendTokens(sequence.row, unsent))
            sequence.unsent = 0
        start = sequence.computed
        samples = start + length == len(sequence.tokens)
        assert samples or not guess
        self.chunks.append(Chunk(sequence.row, start, length, samples, guess))
        self.work.append(sequence)
        self.num_guessed += len(guess)
        self.num_tokens += length + len(guess)
        self.budget -= length + len(guess)

    def limit_prompts(self, share: int) -> None:
        """Prompts may take `share` of what is left."""
        self.prompt_budget = min(self.budget, share)

    def compute_prompt(self, sequence: Sequence, missing: int) -> None:
        """Add as many of the `missing` tokens of `sequence` as prompts may still take."""
        length = min(missing, self.prompt_budget)
        self.compute(sequence, length)
        self.prompt_budget -= length
