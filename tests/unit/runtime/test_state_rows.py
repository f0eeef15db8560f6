"""The slots of recurrent states that the chunks of a step read and write."""

from __future__ import annotations

import numpy as np

from penstock.dialog import Sampling
from penstock.kernels.recurrent_state import STATE_TILE, StateRows
from penstock.runtime.row_table import RowTable
from penstock.runtime.state_rows import StateTable
from penstock.scheduler.types import Admit, AppendBlocks, Chunk, StateUse, StepPlan

ROWS, CONTEXT, BLOCK = 4, 128, 16


def states_of(table: StateTable, *chunks: Chunk) -> StateRows[np.ndarray]:
    rows = np.array([chunk.row for chunk in chunks])
    return table.inputs(chunks, rows, np.array([chunk.start for chunk in chunks], np.int32))


def columns(states: StateRows[np.ndarray]) -> dict[str, list[int]]:
    names = ("source", "base", "target", "keep", "save", "save_after")
    arrays = {name: getattr(states, name) for name in names}
    assert all(a.dtype == np.int32 and a.flags.c_contiguous for a in arrays.values())
    return {name: array.tolist() for name, array in arrays.items()}


def test_first_chunk_starts_with_an_empty_state() -> None:
    table = StateTable(ROWS)
    states = columns(states_of(table, Chunk(2, 0, 20, samples=True)))
    assert states == {
        "source": [-1],
        "base": [0],
        "target": [2],
        "keep": [20],
        "save": [-1],
        "save_after": [0],
    }


def test_next_chunk_starts_with_the_row_and_its_whole_tiles() -> None:
    table = StateTable(ROWS)
    states_of(table, Chunk(2, 0, 37, samples=False), Chunk(0, 0, 5, samples=True))
    states = columns(states_of(table, Chunk(0, 5, 1, True), Chunk(2, 37, 1, True)))
    assert states["source"] == states["target"] == [0, 2]
    assert states["base"] == [0, 32]


def test_rejected_and_accepted_drafts_leave_the_base_at_the_kept_tokens() -> None:
    table = StateTable(ROWS)
    states_of(table, Chunk(1, 0, 15, samples=True))
    drafts = tuple(range(10))
    assert columns(states_of(table, Chunk(1, 15, 1, True, drafts)))["keep"] == [1]
    assert columns(states_of(table, Chunk(1, 20, 1, True, drafts)))["base"] == [16]
    assert columns(states_of(table, Chunk(1, 31, 1, True)))["base"] == [16]
    assert columns(states_of(table, Chunk(1, 32, 1, True)))["base"] == [32]


def test_snapshots_are_in_the_slots_after_the_rows() -> None:
    table = StateTable(ROWS)
    use = StateUse(restore=3, save=5, save_after=16)
    states = columns(states_of(table, Chunk(1, 32, 20, True, state=use), Chunk(0, 0, 1, True)))
    assert states["source"] == [ROWS + 3, -1]
    assert states["base"] == [32, 0]
    assert states["save"] == [ROWS + 5, -1]
    assert states["save_after"] == [16, 0]
    assert columns(states_of(table, Chunk(1, 52, 1, True)))["base"] == [48]


def test_pending_tokens_of_a_row_never_exceed_its_ring() -> None:
    random = np.random.default_rng(0)
    table, position, start_of_next = StateTable(ROWS), 0, []
    for _ in range(200):
        drafts = tuple(range(random.integers(0, 16)))
        length = int(random.integers(1, 40))
        states = columns(states_of(table, Chunk(0, position, length, True, drafts)))
        assert 0 <= position - states["base"][0] < 2 * STATE_TILE
        position += length + int(random.integers(0, len(drafts) + 1))
        start_of_next.append(position)
    assert len(set(start_of_next)) == 200


def test_row_table_adds_the_states_to_prefills_and_decodes() -> None:
    rows = RowTable(ROWS, CONTEXT, BLOCK, states=StateTable(ROWS))
    admit = Admit(1, tuple(range(20)), 20, Sampling(temperature=0.0), seed=0, top_logprobs=None)
    prefill = (Chunk(1, 0, 20, samples=True),)
    rows.apply(StepPlan(1, (), (admit,), (AppendBlocks(1, (3, 4)),), prefill))
    states = rows.inputs(prefill).states
    assert states is not None and states.keep.tolist() == [20]
    rows.append([1], np.array([7], np.int32))
    states = rows.inputs((Chunk(1, 20, 1, samples=True),)).states
    assert states is not None and states.base.tolist() == [16]
    assert states.source.tolist() == [1]


def test_row_table_of_a_model_without_recurrent_layers_has_no_states() -> None:
    rows = RowTable(ROWS, CONTEXT, BLOCK)
    admit = Admit(1, (1, 2), 2, Sampling(temperature=0.0), seed=0, top_logprobs=None)
    prefill = (Chunk(1, 0, 2, samples=True),)
    rows.apply(StepPlan(1, (), (admit,), (AppendBlocks(1, (3,)),), prefill))
    assert rows.inputs(prefill).states is None
