"""The memory of recurrent states: its arrays, its term in the formula, its setting."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from penstock.base.errors import ModelError
from penstock.config import EngineSettings
from penstock.kernels.recurrent_state import StateShape
from penstock.models.decoder.mixer import CacheSize
from penstock.models.decoder.rope_spec import RopeSpec
from penstock.models.decoder.spec import DecoderSpec, LayerSpec
from penstock.runtime.cpu.state_cache import LINE_BYTES, StateCache
from penstock.runtime.mebibytes import MIB
from penstock.runtime.memory import plan_memory
from penstock.runtime.state_memory import (
    LEAST_SNAPSHOTS,
    NO_STATES,
    SNAPSHOTS_PER_ROW,
    StateMemory,
    state_memory,
)
from penstock.scheduler import MAX_DRAFT_TOKENS

DELTA = StateShape(channels=40, taps=4, heads=4, groups=2, key_dim=16, value_dim=8)
CONV = StateShape(channels=24, taps=3)
SHAPES = (DELTA, None, CONV)


@dataclasses.dataclass(frozen=True)
class StateOnly:
    """A mixer that has a state. Stands in for the mixers of real models."""

    state: StateShape
    cache: CacheSize | None = None

    def inner_columns(self, spec: DecoderSpec) -> int:
        return 1000


def spec(*shapes: StateShape | None) -> DecoderSpec:
    layers = [
        LayerSpec() if shape is None else LayerSpec(mixer=StateOnly(shape))  # type: ignore[arg-type]
        for shape in shapes
    ]
    return DecoderSpec(
        architecture="hybrid",
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=64,
        norm_eps=1e-5,
        rope=RopeSpec(1e4, 16),
        layers=tuple(layers),
        max_model_len=256,
    )


def arrays(cache: StateCache) -> list[np.ndarray[Any, Any]]:
    parts = [part for state in cache.states if state for part in (state.conv, state.matrix) if part]
    return [getattr(part, f.name) for part in parts for f in dataclasses.fields(part)]


@pytest.mark.parametrize("algorithm", ["none", "ngram"])
def test_arrays_have_the_bytes_of_the_formula(algorithm: Any) -> None:
    settings = EngineSettings(speculative_algorithm=algorithm)
    memory = state_memory(spec(*SHAPES), settings, 3)
    assert memory.draft_tokens == (MAX_DRAFT_TOKENS if algorithm == "ngram" else 0)
    cache = StateCache(SHAPES, memory)
    assert sum(array.nbytes for array in arrays(cache)) == memory.size_bytes


def test_each_layer_has_separate_zeroed_arrays() -> None:
    cache = StateCache(SHAPES, state_memory(spec(*SHAPES), EngineSettings(), 3))
    assert [state is None for state in cache.states] == [False, True, False]
    assert cache.states[2] is not None and cache.states[2].matrix is None
    found = arrays(cache)
    for index, array in enumerate(found):
        assert array.dtype == np.float32 and array.flags.c_contiguous
        assert array.ctypes.data % LINE_BYTES == 0
        assert not array.any()  # not touched by the writes so far
        array[...] = index + 1
    for index, array in enumerate(found):
        assert (array == index + 1).all()


def test_shapes_of_a_layer() -> None:
    memory = StateMemory(rows=3, snapshots=5, draft_tokens=15)
    state = StateCache((DELTA,), memory).states[0]
    assert state is not None and state.conv is not None and state.matrix is not None
    assert state.conv.recent.shape == (3, 3 + 15, 40)
    assert state.conv.saved.shape == (5, 3, 40)
    assert state.matrix.matrix.shape == (8, 4, 16, 8)
    assert state.matrix.keys.shape == (3, 32, 2 * 16)
    assert state.matrix.values.shape == (3, 32, 4 * 8)
    assert state.matrix.decays.shape == (3, 32, 4)


def test_without_snapshots_only_rows_have_states() -> None:
    memory = state_memory(spec(*SHAPES), EngineSettings(state_snapshot_memory_mb=0), 3)
    state = StateCache((DELTA,), memory).states[0]
    assert state is not None and state.conv is not None and state.matrix is not None
    assert state.conv.saved.shape == (0, 3, 40)
    assert len(state.matrix.matrix) == 3


def test_unused_states_take_no_memory() -> None:
    wide = StateShape(heads=32, groups=32, key_dim=128, value_dim=128)
    before = resident_bytes()
    cache = StateCache((wide,) * 8, StateMemory(rows=32, snapshots=32))
    assert sum(array.nbytes for array in arrays(cache)) > 1000 * MIB
    assert resident_bytes() - before < 50 * MIB


def test_model_without_recurrent_layers_has_no_states() -> None:
    assert state_memory(spec(None), EngineSettings(block_size=8), 3) is NO_STATES
    assert "recurrent" not in plan_memory(spec(None), MIB, EngineSettings(), None).formula()


def test_default_number_of_snapshots_has_bounds() -> None:
    small = state_memory(spec(CONV), EngineSettings(), 8)
    assert small.snapshots == 8 * SNAPSHOTS_PER_ROW
    huge = StateShape(heads=64, groups=64, key_dim=1024, value_dim=1024)
    assert state_memory(spec(huge), EngineSettings(), 8).snapshots == LEAST_SNAPSHOTS
    middle = StateShape(heads=32, groups=16, key_dim=128, value_dim=128)
    shapes = (middle,) * 30
    found = state_memory(spec(*shapes), EngineSettings(), 8)
    assert found.snapshots == 512 * MIB // (30 * 4 * middle.snapshot_floats)


@pytest.mark.parametrize(
    "settings",
    [
        EngineSettings(no_kv_cache=True),
        EngineSettings(enable_prefix_caching=False),
        EngineSettings(state_snapshot_memory_mb=0),
    ],
)
def test_no_snapshots_without_a_prefix_cache(settings: EngineSettings) -> None:
    assert state_memory(spec(*SHAPES), settings, 3).snapshots == 0


def test_memory_of_snapshots_is_divided_by_their_size() -> None:
    settings = EngineSettings(state_snapshot_memory_mb=1)
    memory = state_memory(spec(DELTA), settings, 3)
    assert memory.snapshots == MIB // (4 * DELTA.snapshot_floats)
    wide = StateShape(heads=32, groups=32, key_dim=128, value_dim=128)
    with pytest.raises(ModelError, match="must be 0 or at least 2, the MiB of one snapshot"):
        state_memory(spec(wide), settings, 3)


def test_blocks_must_be_whole_tiles() -> None:
    with pytest.raises(ModelError, match=r"block_size is 24; .* needs a multiple of 16"):
        state_memory(spec(DELTA), EngineSettings(block_size=24), 3)


def test_model_that_does_not_fit_is_refused_with_its_states() -> None:
    wide = StateShape(heads=32, groups=32, key_dim=128, value_dim=128)
    settings = EngineSettings(max_num_seqs=4)
    plan = plan_memory(spec(wide, None), 0, settings, None)
    assert plan.states.size_bytes == 4 * (4 * wide.row_floats(0) + 16 * wide.snapshot_floats)
    assert f"{plan.states.size_bytes // MIB + 1} recurrent states (4 sequences x" in plan.formula()
    assert "16 snapshots x 2.00)" in plan.formula()
    with pytest.raises(
        ModelError, match=r"recurrent states .* state_snapshot_memory_mb needs less"
    ):
        plan_memory(spec(wide, None), 0, settings, 100 * MIB)
    without = msgspec.structs.replace(settings, state_snapshot_memory_mb=0)
    smaller = plan_memory(spec(wide, None), 0, without, None)
    assert plan.total_bytes - smaller.total_bytes == 16 * 4 * wide.snapshot_floats


def test_only_layers_with_a_cache_count_in_the_cache() -> None:
    one, two = (
        plan_memory(spec(*shapes), 0, EngineSettings(), None)
        for shapes in ((None, CONV), (None, None))
    )
    assert 2 * one.cache.size_bytes == two.cache.size_bytes
    assert "x 1 layers x 2 x 2 heads x 16 x 2 bytes" in one.formula()


def test_model_of_recurrent_layers_only_has_an_empty_cache() -> None:
    for settings in (EngineSettings(), EngineSettings(kv_cache_memory_mb=64)):
        plan = plan_memory(spec(CONV, DELTA), 0, settings, None)
        assert plan.cache.size_bytes == 0
        assert plan.max_model_len == 256
    with pytest.raises(ModelError, match="the model does not fit"):
        plan_memory(spec(CONV, DELTA), 0, EngineSettings(), 10 * MIB)


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")
