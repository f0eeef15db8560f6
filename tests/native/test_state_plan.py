"""A plan with recurrent layers gives the bits of eager calls, and both refuse states that a step
must not have."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("penstock._native")

from penstock.kernels.native import NativeOps, plan_arguments  # noqa: E402
from penstock.kernels.recurrent_state import (  # noqa: E402
    ConvState,
    LayerState,
    MatrixState,
    StateRows,
    conv_ring,
)
from penstock.kernels.step_inputs import StepInputs  # noqa: E402
from penstock.kernels.weights import Dense  # noqa: E402

HEADS = (2, 4, 16, 24)  # groups, heads, key and value dimension
COLUMNS, GATES, VOCAB = 2 * 2 * 16 + 4 * 24, 8, 50
ROWS, SNAPSHOTS, DRAFTS = 3, 2, 3
MAX_TOKENS, MAX_ROWS = 40, ROWS
RANDOM = np.random.default_rng(3)
WEIGHT = RANDOM.standard_normal((COLUMNS, 4)).astype(np.float32)
DECAY = RANDOM.random((2, 4)).astype(np.float32)
NORM = RANDOM.random(4 * 24).astype(np.float32)
TABLES = [
    Dense(RANDOM.standard_normal((VOCAB, width)).astype(np.float32), "f32")
    for width in (COLUMNS, GATES, 4 * 24)
]


def new_state() -> LayerState[Any]:
    groups, heads, key_dim, value_dim = HEADS
    shapes = (
        (ROWS + SNAPSHOTS, heads, key_dim, value_dim),
        (ROWS, 32, groups * key_dim),
        (ROWS, 32, heads * value_dim),
        (ROWS, 32, heads),
    )
    conv = (ROWS, conv_ring(4, DRAFTS), COLUMNS), (SNAPSHOTS, 3, COLUMNS)
    return LayerState(
        ConvState(*(np.zeros(shape, np.float32) for shape in conv)),
        MatrixState(*(np.zeros(shape, np.float32) for shape in shapes)),
    )


def forward(ops: Any, tables: list[Any], step: StepInputs[Any], state: LayerState[Any]) -> Any:
    qkv, gates, z = (ops.embedding(table, step.tokens, 1.0) for table in tables)
    qkv = ops.causal_conv(qkv, WEIGHT, None, step, state.conv)
    x = ops.gated_delta_rule(qkv, gates, DECAY, step, state.matrix, HEADS, 1.0)
    x = ops.add(ops.norm_then_gate(x, z, NORM, 1e-5, 4), ops.sigmoid_mul(x, z))
    return ops.gather_rows(x, step.sample_rows)


def step_of(chunks: list[tuple[int, int]], **states: list[int]) -> StepInputs[Any]:
    """Return a step. `chunks`: start and length of each; `states`: fields of StateRows that differ
    from those of live rows 0, 1, ... without drafts and snapshots."""
    rows = range(len(chunks))
    fields = {
        "source": list(rows),
        "base": [start // 16 * 16 for start, _ in chunks],
        "target": list(rows),
        "keep": [length for _, length in chunks],
        "save": [-1 for _ in rows],
        "save_after": [0 for _ in rows],
    }
    starts = np.cumsum([0, *(length for _, length in chunks)])
    positions = np.concatenate([np.arange(start, start + length) for start, length in chunks])
    vectors = (
        positions * 7 % VOCAB,
        positions,
        positions,
        starts,
        [start + length for start, length in chunks],
        np.zeros((len(chunks), 1)),
        starts[1:] - 1,
    )
    given = {name: np.array(states.get(name, one), np.int32) for name, one in fields.items()}
    return StepInputs(*(np.array(one, np.int32) for one in vectors), states=StateRows(**given))


STEPS = [
    step_of([(0, 20), (0, 16)], source=[-1, -1], base=[0, 0], save=[3, 4], save_after=[16, 16]),
    step_of([(20, 1), (16, 4)], keep=[1, 1]),
    step_of(
        [(21, 12), (18, 1), (16, 3)], source=[0, 1, 4], save=[3, -1, -1], save_after=[11, 0, 0]
    ),
]


@pytest.mark.parametrize("threads", [1, 2])
def test_plan_gives_the_bits_of_the_eager_calls(threads: int) -> None:
    ops = NativeOps.eager(native.ThreadPool(threads))
    tables = [ops.pack_embedding(table) for table in TABLES]
    recorder = ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, 1, states=True)
    state = new_state()
    plan = recorder.finish(forward(recorder, tables, recorder.inputs, state))
    eager = copy.deepcopy(state)
    for step in STEPS:
        expected = forward(ops, tables, step, eager)
        np.testing.assert_array_equal(plan.run(*plan_arguments(step)), expected)
        assert np.abs(expected).max() > 0
    assert state.matrix is not None and eager.matrix is not None
    np.testing.assert_array_equal(state.matrix.matrix, eager.matrix.matrix)


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("target", [0, 3], r"state_target\[1\]: 3 is not in 0..2"),
        ("source", [0, 5], r"state_source\[1\]: 5 is not below 5"),
        ("source", [0, 2], r"state_source\[1\]: 2 is a row, but not the target, 1"),
        ("source", [0, 3], r"state_base\[1\]: 32 is not the start of the chunk, 36"),
        ("source", [-1, 1], r"state_base\[0\]: 16 is not the start of the chunk, 20"),
        ("base", [8, 32], r"state_base\[0\]: 8 is not a multiple of 16 in 0..20"),
        ("base", [32, 32], r"state_base\[0\]: 32 is not a multiple of 16 in 0..20"),
        ("base", [16, 0], r"state_base\[1\]: 0 leaves 36 tokens pending, but only 31"),
        ("keep", [6, 1], r"state_keep\[0\]: 6 is not in 0..5, the length of the chunk"),
        ("keep", [-1, 1], r"state_keep\[0\]: -1 is not in 0..5"),
        ("keep", [1, 1], r"state_keep\[0\]: 1 leaves more than 3 draft tokens"),
        ("save", [1, -1], r"state_save\[0\]: 1 is not in 3..4"),
        ("save", [5, -1], r"state_save\[0\]: 5 is not in 3..4"),
        ("save", [3, -1], r"state_save_after\[0\]: 0 is not at a multiple of 16 tokens"),
    ],
)
def test_states_that_a_step_must_not_have_are_refused(
    field: str, values: list[int], message: str
) -> None:
    refuse(step_of([(20, 5), (36, 1)], **{field: values}), message)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (step_of([(20, 5), (36, 1)], target=[1, 1], source=[1, 1]), "state_target: 1 occurs twice"),
        (
            step_of([(0, 16), (0, 16)], source=[-1, -1], save=[3, 3], save_after=[16, 16]),
            "state_save: 3 occurs twice",
        ),
        (
            step_of([(0, 16), (16, 1)], source=[-1, 3], save=[3, -1], save_after=[16, 0]),
            "state_save: 3 is also the source of a chunk",
        ),
        (
            step_of([(0, 16)], source=[-1], save=[3], save_after=[17]),
            r"state_save_after\[0\]: 17 is not in 0..16",
        ),
        (step_of([(-1, 2)], base=[0]), r"context_lens\[0\]: is shorter than the chunk"),
    ],
)
def test_steps_whose_chunks_collide_are_refused(step: StepInputs[Any], message: str) -> None:
    refuse(step, message)


def refuse(step: StepInputs[Any], message: str) -> None:
    """Expect that a plan and the eager call of each layer, or of one of them, refuse the step."""
    ops = NativeOps.eager(native.ThreadPool(1))
    tables = [ops.pack_embedding(table) for table in TABLES]
    recorder = ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, 1, states=True)
    state = new_state()
    plan = recorder.finish(forward(recorder, tables, recorder.inputs, state))
    with pytest.raises(ValueError, match=message):
        plan.run(*plan_arguments(step))
    with pytest.raises(ValueError, match=message):
        forward(ops, tables, step, state)
    assert not state.matrix.values.any()


def test_plan_without_states_takes_no_states() -> None:
    ops = NativeOps.eager(native.ThreadPool(1))
    recorder = ops.recorder(MAX_TOKENS, MAX_ROWS, MAX_ROWS, 1)
    table = ops.pack_embedding(TABLES[0])
    plan = recorder.finish(recorder.embedding(table, recorder.inputs.tokens, 1.0))
    with pytest.raises(ValueError, match="further: the plan was recorded with none, got 6 arrays"):
        plan.run(*plan_arguments(STEPS[0]))
    with pytest.raises(ValueError, match=r"inputs\.states: is None, expected the states"):
        forward(recorder, [ops.pack_embedding(one) for one in TABLES], recorder.inputs, new_state())


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"heads": (3, 4, 16, 24)}, "H: must be a positive multiple of G"),
        ({"heads": (2, 4, 12, 24)}, "N: must be a multiple of 8 from 8 to 512"),
        ({"ring": 24}, "keys: must have 16 or 32 tokens per row"),
        ({"taps": 5}, "L: must be 2, 3 or 4"),
        ({"before": 2}, "saved: must have L - 1 = 3 inputs per snapshot"),
        ({"groups": 5}, "groups: must divide W"),
        ({"gate": 3}, "gate: must have 1 or W columns"),
    ],
)
def test_sizes_without_a_kernel_are_refused(sizes: dict[str, Any], message: str) -> None:
    ops = NativeOps.eager(native.ThreadPool(1))
    groups, heads, key_dim, value_dim = sizes.get("heads", HEADS)
    ring, taps = sizes.get("ring", 32), sizes.get("taps", 4)
    zeros = lambda *shape: np.zeros(shape, np.float32)  # noqa: E731
    width = 2 * groups * key_dim + heads * value_dim
    matrix = MatrixState(
        zeros(ROWS, heads, key_dim, value_dim),
        zeros(ROWS, ring, groups * key_dim),
        zeros(ROWS, ring, heads * value_dim),
        zeros(ROWS, ring, heads),
    )
    conv = ConvState(zeros(ROWS, 8, width), zeros(0, sizes.get("before", taps - 1), width))
    step = step_of([(0, 2)], source=[-1])
    x, out_width = zeros(2, width), heads * value_dim
    with pytest.raises(ValueError, match=message):
        ops.causal_conv(x, zeros(width, taps), None, step, conv)
        gates = zeros(2, 2 * heads)
        shape = (groups, heads, key_dim, value_dim)
        ops.gated_delta_rule(x, gates, zeros(2, heads), step, matrix, shape, 1.0)
        norm = zeros(2, out_width), zeros(2, out_width), zeros(out_width)
        ops.norm_then_gate(*norm, 1e-5, sizes.get("groups", 4))
        ops.sigmoid_mul(norm[0], zeros(2, sizes.get("gate", 1)))
