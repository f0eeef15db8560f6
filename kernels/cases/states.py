"""Random states of recurrent layers for test cases. Memory that an op must not read holds NaN."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from penstock.kernels.cases.random_inputs import RandomInputs
from penstock.kernels.recurrent_state import STATE_TILE, ConvState, MatrixState, StateRows
from penstock.kernels.step_inputs import StepInputs

_SPARE = 2  # rows and snapshots that no chunk uses


@dataclass(frozen=True, slots=True)
class StateCase:
    """One row of a step.

    - `start`, `length`: tokens before the chunk, and tokens of the chunk.
    - `drafts`: number of draft tokens at the end of the chunk.
    - `source`: where the state before the chunk is.
    - `save_after`: see `StateRows`; None: no snapshot.
    - `behind`: number of complete tiles before `start` that are still pending.
    """

    start: int
    length: int
    drafts: int = 0
    source: Literal["live", "snapshot", "empty"] = "live"
    save_after: int | None = None
    behind: int = 0

    @property
    def base(self) -> int:
        """The number of tokens in the matrix before the chunk."""
        return (self.start // STATE_TILE - self.behind) * STATE_TILE


def state_step(source: RandomInputs, cases: Sequence[StateCase]) -> StepInputs[torch.Tensor]:
    """Return the inputs of a step with these rows, in states of shuffled rows and snapshots."""
    rows, order = len(cases) + _SPARE, torch.randperm(len(cases) + _SPARE, generator=source.torch)
    slots = rows + torch.randperm(2 * len(cases) + _SPARE, generator=source.torch)
    target = order[: len(cases)].tolist()
    restored, saved = slots[: len(cases)].tolist(), slots[len(cases) : 2 * len(cases)].tolist()
    of_kind = {"live": target, "snapshot": restored, "empty": [-1] * len(cases)}
    columns = {
        "source": [of_kind[case.source][row] for row, case in enumerate(cases)],
        "base": [case.base for case in cases],
        "target": target,
        "keep": [case.length - case.drafts for case in cases],
        "save": [-1 if c.save_after is None else saved[row] for row, c in enumerate(cases)],
        "save_after": [case.save_after or 0 for case in cases],
    }
    states = StateRows(
        **{name: torch.tensor(column, dtype=torch.int32) for name, column in columns.items()}
    )
    step = source.step([(case.start, case.length) for case in cases], STATE_TILE)
    return dataclasses.replace(step, states=states)


def _rows_of(
    step: StepInputs[torch.Tensor], cases: Sequence[StateCase]
) -> Iterator[tuple[StateCase, dict[str, int]]]:
    assert step.states is not None
    names = ("source", "target", "save")
    for row, case in enumerate(cases):
        yield case, {name: int(getattr(step.states, name)[row]) for name in names}


def conv_state(
    source: RandomInputs,
    step: StepInputs[torch.Tensor],
    cases: Sequence[StateCase],
    sizes: tuple[int, int, int],
) -> ConvState[torch.Tensor]:
    """Return the state of a convolution before the step. `sizes`: channels, taps, ring."""
    channels, taps, ring = sizes
    rows = len(cases) + _SPARE
    recent = torch.full((rows, ring, channels), float("nan"))
    saved = torch.full((2 * len(cases) + _SPARE, taps - 1, channels), float("nan"))
    for case, slots in _rows_of(step, cases):
        if case.source == "live":
            known = torch.arange(max(case.start - taps + 1, 0), case.start)
            recent[slots["target"], known % ring] = source.normal(len(known), channels)
        elif case.source == "snapshot":
            saved[slots["source"] - rows] = source.normal(taps - 1, channels)
    return ConvState(recent, saved)


def matrix_state(
    source: RandomInputs,
    step: StepInputs[torch.Tensor],
    cases: Sequence[StateCase],
    heads: tuple[int, int, int, int],
    ring: int,
) -> MatrixState[torch.Tensor]:
    """Return the matrix state before the step. `heads`: (G, H, N, D)."""
    num_groups, num_heads, key_dim, value_dim = heads
    rows = len(cases) + _SPARE
    nan = float("nan")
    slots = rows + 2 * len(cases) + _SPARE
    state = MatrixState(
        matrix=torch.full((slots, num_heads, key_dim, value_dim), nan),
        keys=torch.full((rows, ring, num_groups * key_dim), nan),
        values=torch.full((rows, ring, num_heads * value_dim), nan),
        decays=torch.full((rows, ring, num_heads), nan),
    )
    for case, row in _rows_of(step, cases):
        if case.source != "empty":
            state.matrix[row["source"]] = source.normal(num_heads, key_dim, value_dim)
        log = torch.zeros(num_heads)
        for position in range(case.base, case.start):
            place = (row["target"], position % ring)
            key = source.normal(num_groups, key_dim)
            state.keys[place] = (key / key.norm(dim=-1, keepdim=True)).flatten()
            state.values[place] = source.normal(num_heads * value_dim)
            log = log if position % STATE_TILE else torch.zeros(num_heads)
            log = log - source.normal(num_heads).abs() / 4
            state.decays[place] = log
    return state


def conv_results(
    step: StepInputs[Any], cases: Sequence[StateCase], state: ConvState[Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state after the step, with zeros for all inputs that no later step reads."""
    recent = torch.as_tensor(state.recent).clone()
    ring, before = recent.shape[1], state.saved.shape[1]
    for case, slots in _rows_of(step, cases):
        first = case.start + case.length - case.drafts - before
        read = torch.arange(max(first, 0), case.start + case.length)
        recent[slots["target"]] = _only(recent[slots["target"]], read % ring)
    return recent, torch.as_tensor(state.saved)


def matrix_results(
    step: StepInputs[Any], cases: Sequence[StateCase], state: MatrixState[Any]
) -> tuple[torch.Tensor, ...]:
    """Return the state after the step, with zeros for all tokens that are not pending."""
    rings = [torch.as_tensor(ring).clone() for ring in (state.keys, state.values, state.decays)]
    for case, slots in _rows_of(step, cases):
        end = (case.start + case.length - case.drafts) // STATE_TILE * STATE_TILE
        pending = torch.arange(end, case.start + case.length)
        for ring in rings:
            ring[slots["target"]] = _only(ring[slots["target"]], pending % ring.shape[1])
    return torch.as_tensor(state.matrix), *rings


def _only(ring: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros_like(ring)
    kept[indices] = ring[indices]
    return kept
