"""A sequence that is divided into chunks, with rejected drafts and restored snapshots, gives the
same results and states as the sequence in one chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from penstock import _native
from penstock.kernels.load_ops import load_ops
from penstock.kernels.numpy_bridge import as_tensors
from penstock.kernels.recurrent_state import (
    STATE_TILE,
    ConvState,
    MatrixState,
    StateRows,
    conv_ring,
    matrix_ring,
)
from penstock.kernels.step_inputs import StepInputs
from tests.support.triton_interpreter import INTERPRETED, passes_interpreted

LENGTH, ROWS, SNAPSHOTS, DRAFTS = 110 if INTERPRETED else 150, 3, 2, 9
HEADS = (1, 2, 24, 8) if INTERPRETED else (2, 4, 24, 40)
SEEDS = (2,) if INTERPRETED else range(4)  # 0: no draft tokens
CHANNELS = 40
Rows = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Layer:
    """An op with random constants. `call` takes ops, activations by name, step inputs and state."""

    widths: dict[str, int]
    new_state: Callable[[], Any]
    call: Callable[[Any, Rows, StepInputs[Any], Any], Any]


def matrix_state() -> MatrixState[Any]:
    groups, heads, key_dim, value_dim = HEADS
    ring = matrix_ring(DRAFTS)
    shapes = (
        (ROWS + SNAPSHOTS, heads, key_dim, value_dim),
        (ROWS, ring, groups * key_dim),
        (ROWS, ring, heads * value_dim),
        (ROWS, ring, heads),
    )
    return MatrixState(*(np.full(shape, np.nan, np.float32) for shape in shapes))


def conv_state() -> ConvState[Any]:
    recent = np.full((ROWS, conv_ring(4, DRAFTS), CHANNELS), np.nan, np.float32)
    return ConvState(recent, np.full((SNAPSHOTS, 3, CHANNELS), np.nan, np.float32))


def constants(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(7).random(shape, np.float32)


COLUMNS = 2 * HEADS[0] * HEADS[2] + HEADS[1] * HEADS[3]
WEIGHT, BIAS, TWO, THREE = (
    constants(CHANNELS, 4),
    constants(CHANNELS),
    constants(2, HEADS[1]),
    constants(3, HEADS[1]),
)
LAYERS = {
    "causal_conv": Layer(
        {"x": CHANNELS},
        conv_state,
        lambda ops, rows, step, state: ops.causal_conv(rows["x"], WEIGHT, BIAS, step, state),
    ),
    "gated_conv": Layer(
        {"x": 3 * CHANNELS},
        conv_state,
        lambda ops, rows, step, state: ops.gated_conv(rows["x"], WEIGHT, None, step, state),
    ),
    "gated_delta_rule": Layer(
        {"qkv": COLUMNS, "gates": 2 * HEADS[1]},
        matrix_state,
        lambda ops, rows, step, state: ops.gated_delta_rule(
            rows["qkv"], rows["gates"], TWO, step, state, HEADS, 1.0
        ),
    ),
    "state_space_scan": Layer(
        {"xbc": COLUMNS, "dt": HEADS[1]},
        matrix_state,
        lambda ops, rows, step, state: ops.state_space_scan(
            rows["xbc"], rows["dt"], THREE, step, state, HEADS, (0.0, 4.0)
        ),
    ),
}


class OverTensors:
    """Ops of torch tensors over numpy arrays."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *operands: getattr(self._ops, name)(*map(as_tensors, operands)).numpy()


IMPLEMENTATIONS = ("triton",) if INTERPRETED else ("reference", *_native.supported_isas())


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def ops_of(request: pytest.FixtureRequest) -> Iterator[Callable[[int], Any]]:
    """Make ops with a number of threads."""
    if request.param == "reference":
        yield lambda threads: OverTensors(load_ops("reference"))
    elif request.param == "triton":
        from penstock.kernels.triton import TritonOps

        yield lambda threads: OverTensors(TritonOps("cpu"))
    else:
        yield lambda threads: load_ops(
            "native", pool=_native.ThreadPool(threads), isa=request.param
        )


def is_exact(ops: Any) -> bool:
    """Return whether results have the same bits for every division: the references compute a batch
    of another size in another order."""
    return INTERPRETED or not isinstance(ops, OverTensors)


@dataclass
class Sequence:
    """One sequence and its place in the states."""

    inputs: Rows
    target: int
    source: int = -1
    base: int = 0
    position: int = 0
    results: dict[int, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Chunk:
    """The next chunk of a sequence: its tokens, of which the last `drafts` are draft tokens, and
    how many of these are accepted. `save`: a snapshot, and the number of tokens in it."""

    length: int
    drafts: int = 0
    accepted: int = 0
    save: tuple[int, int] = (-1, 0)


def step(ops: Any, layer: Layer, state: Any, work: list[tuple[Sequence, Chunk]]) -> None:
    """Compute one chunk of each sequence. Rejected drafts have other inputs than the sequence."""
    lengths = [chunk.length for _, chunk in work]
    starts = [0, *itertools.accumulate(lengths)]
    columns = {
        "source": [one.source for one, _ in work],
        "base": [one.base for one, _ in work],
        "target": [one.target for one, _ in work],
        "keep": [chunk.length - chunk.drafts for _, chunk in work],
        "save": [chunk.save[0] for _, chunk in work],
        "save_after": [max(chunk.save[1] - one.position, 0) for one, chunk in work],
    }
    rows = {name: np.concatenate([inputs_of(*one)[name] for one in work]) for name in layer.widths}
    unused = np.zeros(0, np.int32)
    contexts = [one.position + chunk.length for one, chunk in work]
    inputs: StepInputs[Any] = StepInputs(
        tokens=unused,
        positions=unused,
        slots=unused,
        query_starts=np.array(starts, np.int32),
        context_lens=np.array(contexts, np.int32),
        block_tables=unused,
        sample_rows=unused,
        states=StateRows(**{name: np.array(one, np.int32) for name, one in columns.items()}),
    )
    out = layer.call(ops, rows, inputs, state)
    for (one, chunk), first in zip(work, starts, strict=False):
        kept = chunk.length - chunk.drafts + chunk.accepted
        for token in range(kept):
            one.results[one.position + token] = out[first + token].copy()
        one.base = (one.position + chunk.length - chunk.drafts) // STATE_TILE * STATE_TILE
        one.position += kept
        one.source = one.target


def inputs_of(one: Sequence, chunk: Chunk) -> Rows:
    kept = chunk.length - chunk.drafts + chunk.accepted
    rows = {
        name: values[one.position : one.position + chunk.length].copy()
        for name, values in one.inputs.items()
    }
    for values in rows.values():
        values[kept:] = -3.0
    return rows


def random_sequence(seed: int, layer: Layer, target: int) -> Sequence:
    random = np.random.default_rng(seed)
    inputs = {
        name: random.standard_normal((LENGTH, width), np.float32)
        for name, width in layer.widths.items()
    }
    return Sequence(inputs, target)


def random_chunk(random: Any, one: Sequence, ahead: bool) -> Chunk:
    """Return a chunk that stays in the sequence. `ahead`: with draft tokens."""
    most = min(LENGTH - DRAFTS - one.position, 45 if random.random() < 0.3 else 3)
    length = int(random.integers(1, most + 1))
    if not ahead:
        return Chunk(length)
    drafts = int(random.integers(0, DRAFTS + 1))
    accepted = int(random.integers(0, drafts + 1))
    return Chunk(length + drafts, drafts, accepted)


def whole(ops: Any, layer: Layer, seed: int) -> dict[int, Any]:
    one = random_sequence(seed, layer, 1)
    step(ops, layer, layer.new_state(), [(one, Chunk(LENGTH))])
    return one.results


def check(results: dict[int, Any], expected: dict[int, Any], exact: bool) -> None:
    for position, row in results.items():
        if exact:
            np.testing.assert_array_equal(row, expected[position], str(position))
        else:
            np.testing.assert_allclose(row, expected[position], 1e-4, 1e-4, str(position))


@pytest.mark.parametrize("name", LAYERS)
def test_chunks_give_the_bits_of_the_whole_sequence(
    ops_of: Callable[[int], Any], name: str
) -> None:
    layer, ops = LAYERS[name], ops_of(2)
    exact = is_exact(ops)
    expected = [whole(ops_of(1), layer, seed) for seed in (0, 1)]
    for seed in SEEDS if exact else (0,):
        random = np.random.default_rng(seed)
        state = layer.new_state()
        pair = [random_sequence(0, layer, 2), random_sequence(1, layer, 0)]
        while waiting := [one for one in pair if one.position < LENGTH - DRAFTS]:
            step(ops, layer, state, [(one, random_chunk(random, one, seed > 0)) for one in waiting])
        for one, truth in zip(pair, expected, strict=True):
            assert len(one.results) >= LENGTH - DRAFTS
            check(one.results, truth, exact)


@pytest.mark.parametrize("name", LAYERS)
def test_snapshot_continues_as_the_sequence_did(ops_of: Callable[[int], Any], name: str) -> None:
    layer, ops = LAYERS[name], ops_of(3)
    expected = whole(ops, layer, 0)
    state = layer.new_state()
    first = random_sequence(0, layer, 2)
    for chunk in (
        Chunk(21, save=(ROWS, 16)),
        Chunk(11, save=(ROWS + 1, 32)),
        Chunk(13, drafts=9, accepted=3),
        Chunk(50, save=(ROWS, 64)),
    ):
        step(ops, layer, state, [(first, chunk)])
    later = [
        Sequence(first.inputs, 1, source=ROWS + 1, base=32, position=32),
        Sequence(first.inputs, 0, source=ROWS, base=64, position=64),
    ]
    for lengths in ((1, 30), (40, 1), (9, 2)):
        step(ops, layer, state, [(one, Chunk(n)) for one, n in zip(later, lengths, strict=True)])
    for one in (first, *later):
        check(one.results, expected, is_exact(ops))


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="it is what this test starts")
def test_triton_kernels_keep_the_bits_too() -> None:
    passes_interpreted(__file__)
