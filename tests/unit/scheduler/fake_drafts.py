"""A drafter without a model, which knows the next tokens and makes mistakes on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.scheduler import Chunk, Draft


@dataclass
class FakeDrafter:
    """Proposes right tokens, except for each `wrong_every`-th token of all.

    `offered`: for each row, the number of known tokens and the draft for the next ones.
    """

    max_drafts: int
    wrong_every: int = 0
    token_s: float = 0.0001
    count: int = 0
    offered: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def propose(self, chunk: Chunk, known: int, right: Callable[[int], list[int]]) -> Draft:
        """Return a draft. `known`: tokens of the row. `right(n)`: its next n tokens."""
        assert 0 < chunk.num_drafts <= self.max_drafts
        tokens = []
        for token in right(chunk.num_drafts):
            self.count += 1
            is_wrong = self.wrong_every and self.count % self.wrong_every == 0
            tokens.append(token + 1 if is_wrong else token)
        self.offered[chunk.row] = known, tuple(tokens)
        return Draft(chunk.row, tuple(tokens))

    def check(self, chunk: Chunk) -> None:
        """Check that the draft tokens of a chunk were offered for this position."""
        known, tokens = self.offered[chunk.row]
        begin = chunk.start + chunk.length - known
        assert begin >= 0
        assert chunk.draft_tokens == tokens[begin : begin + len(chunk.draft_tokens)]
