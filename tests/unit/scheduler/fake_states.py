"""Recurrent states without numbers: a state is the list of the tokens that it contains.

The rules of `kernels.recurrent_state` apply: a matrix contains whole tiles, the tokens after it are
pending in a ring, and draft tokens stay pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.scheduler import Chunk, StepPlan


@dataclass
class RowState:
    """The tokens in the matrix of a row, and its ring of pending (position, token)."""

    matrix: tuple[int, ...]
    ring: list[tuple[int, int] | None]


@dataclass
class FakeStates:
    """The states of rows and snapshots. `tile`: tokens of a tile, which divides a block.
    `draft_tokens`: most draft tokens of a step."""

    snapshots: int
    tile: int
    draft_tokens: int
    rows: dict[int, RowState] = field(default_factory=dict)
    saved: dict[int, tuple[int, ...]] = field(default_factory=dict)
    restores: int = 0

    def begin(self, plan: StepPlan) -> None:
        """Check that the chunks of a step do not use each other's snapshots, and forget the rows
        that it releases."""
        saves = [chunk.state.save for chunk in plan.chunks if chunk.state.save is not None]
        restores = {chunk.state.restore for chunk in plan.chunks}
        assert len(set(saves)) == len(saves)
        assert restores.isdisjoint(saves)
        assert all(0 <= slot < self.snapshots for slot in saves)
        for row in plan.releases:
            self.rows.pop(row, None)

    def compute(self, chunk: Chunk, tokens: Sequence[int]) -> None:
        """Compute a chunk. `tokens`: the tokens of its row up to its end, with its draft tokens."""
        start, keep, use = chunk.start, chunk.length, chunk.state
        before, base = self._before(chunk)
        assert before == tuple(tokens[:start]), "a chunk starts from another state"
        known = before + tuple(tokens[start : start + keep])
        if use.save is not None:
            position = start + use.save_after
            assert 0 <= use.save_after <= keep
            assert position % self.tile == 0 and position >= base
            self.saved[use.save] = known[:position]
        end = len(known) // self.tile * self.tile
        size = self.tile + self.draft_tokens
        row = self.rows.setdefault(chunk.row, RowState((), [None] * size))
        row.matrix = known[:end]
        assert len(tokens) - end <= size, "the ring is too short for the draft tokens"
        for position in range(max(start, end), len(tokens)):
            row.ring[position % size] = (position, tokens[position])

    def _before(self, chunk: Chunk) -> tuple[tuple[int, ...], int]:
        """Return the tokens in the state with which a chunk starts, and how many of them are in the
        matrix."""
        if chunk.state.restore is not None:
            self.restores += 1
            state = self.saved[chunk.state.restore]
            return state, len(state)
        if chunk.start == 0:
            return (), 0
        row = self.rows[chunk.row]
        base = len(row.matrix)
        pending = [row.ring[p % len(row.ring)] for p in range(base, chunk.start)]
        assert [place and place[0] for place in pending] == list(range(base, chunk.start))
        return row.matrix + tuple(place[1] for place in pending if place is not None), base
