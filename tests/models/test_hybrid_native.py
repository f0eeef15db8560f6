"""The native kernels compute hybrid models like `transformers`, with the same bits in chunks of any
size, beside any other sequences and from a recorded plan."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hybrid_models import (
    DELTA,
    FALCON,
    GRANITE,
    MAMBA,
    NEMOTRON,
    OLMO,
    PROMPT,
    SHORT_CONV,
    expected_logits,
    save,
)

from penstock import _native
from penstock.kernels.native import NativeOps, plan_arguments
from penstock.kernels.recurrent_state import STATE_TILE, StateRows
from penstock.kernels.step_inputs import LayerCache, StepInputs
from penstock.models.decoder.decoder import Decoder
from penstock.models.hub.model_files import ModelFiles
from penstock.models.loader.model_loader import load_model
from penstock.runtime.cpu.state_cache import StateCache
from penstock.runtime.state_memory import StateMemory

BLOCK_TOKENS, TABLE, ROWS = 16, 3, 3
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3.5": ("Qwen3_5", DELTA),
    "LFM2": ("Lfm2", SHORT_CONV),
    "Granite 4": ("GraniteMoeHybrid", MAMBA | GRANITE),
    "Nemotron-H": ("NemotronH", NEMOTRON),
    "Falcon-H1": ("FalconH1", MAMBA | FALCON),
    "OLMo": ("OlmoHybrid", OLMO),
}
CUTS = {
    "tokens": range(len(PROMPT) + 1),
    "within a tile": (0, 3, 5, 7, 20, 21, 39),
    "at the ends of tiles": (0, 16, 32, 39),
    "across tiles": (0, 15, 17, 39),
}

Logits = npt.NDArray[np.float32]


@dataclass
class Sequences:
    """The memory of `ROWS` sequences: undefined before it is written. `eager`: without a plan."""

    decoder: Decoder[Any]
    ops: NativeOps
    eager: bool = False
    lengths: list[int] = field(default_factory=lambda: [0] * ROWS)
    plan: Any = None

    def __post_init__(self) -> None:
        spec = self.decoder.spec
        undefined = np.float32(np.nan)
        blocks = ROWS * TABLE
        self.caches = [
            None
            if size is None
            else LayerCache(
                np.full((blocks, size.kv_heads, size.key_dim, BLOCK_TOKENS), undefined),
                np.full((blocks, size.kv_heads, BLOCK_TOKENS, size.value_dim), undefined),
            )
            for size in spec.caches
        ]
        memory = StateMemory(rows=ROWS, snapshots=1)
        self.states = StateCache(spec.states, memory).states
        for state in filter(None, self.states):
            for part in filter(None, (state.conv, state.matrix)):
                for name in part.__slots__:
                    getattr(part, name).fill(undefined)
        if not self.eager:
            recorder = self.ops.recorder(64, ROWS, 64, TABLE, states=True)
            logits = self.decoder.forward(recorder, recorder.inputs, self.caches, None, self.states)
            self.plan = recorder.finish(logits)

    def step(self, chunks: dict[int, list[int]]) -> Logits:
        """Return the logits of all tokens of the chunks."""
        rows = list(chunks)
        lengths = [len(chunk) for chunk in chunks.values()]
        starts = [self.lengths[row] for row in rows]
        ends = [start + length for start, length in zip(starts, lengths, strict=True)]
        positions = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        tables = np.arange(ROWS * TABLE, dtype=np.int32).reshape(TABLE, ROWS).T[rows].copy()
        owner = np.repeat(np.arange(len(rows)), lengths)
        slots = tables[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
        none = [-1] * len(rows)
        states = StateRows(
            source=_int32([row if start else -1 for row, start in zip(rows, starts, strict=True)]),
            base=_int32([start // STATE_TILE * STATE_TILE for start in starts]),
            target=_int32(rows),
            keep=_int32(lengths),
            save=_int32(none),
            save_after=_int32([0] * len(rows)),
        )
        inputs = StepInputs(
            _int32(list(itertools.chain(*chunks.values()))),
            _int32(positions),
            _int32(slots),
            _int32([0, *itertools.accumulate(lengths)]),
            _int32(ends),
            tables,
            np.arange(sum(lengths), dtype=np.int32),
            states=states,
        )
        for row, end in zip(rows, ends, strict=True):
            self.lengths[row] = end
        if self.plan is not None:
            return np.array(self.plan.run(*plan_arguments(inputs)))
        return np.array(self.decoder.forward(self.ops, inputs, self.caches, None, self.states))


@pytest.fixture(scope="module", params=list(MODELS))
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(float32 model of transformers, decoder, ops) of one model."""
    folder: Path = tmp_path_factory.mktemp("model")
    model = save(*MODELS[request.param], folder)
    loaded = load_model(ModelFiles("test", "folder", folder), "auto")
    ops = NativeOps.eager(_native.ThreadPool(2))
    return model, Decoder(loaded.spec, loaded.weights, ops, max_model_len=64), ops


def test_a_prompt_has_the_logits_of_transformers_eagerly_and_from_a_plan(native: Any) -> None:
    model, decoder, ops = native
    eager = Sequences(decoder, ops, eager=True).step({1: PROMPT})
    planned = Sequences(decoder, ops).step({1: PROMPT})
    np.testing.assert_array_equal(eager, planned)
    truth = expected_logits(model, PROMPT)
    torch.testing.assert_close(torch.from_numpy(eager), truth, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("cuts", CUTS.values(), ids=CUTS)
def test_chunks_of_any_size_have_the_same_bits(native: Any, cuts: Any) -> None:
    _, decoder, ops = native
    whole = Sequences(decoder, ops).step({0: PROMPT})
    sequences = Sequences(decoder, ops)
    parts = [sequences.step({0: PROMPT[first:last]}) for first, last in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_other_sequences_in_a_step_do_not_change_a_bit(native: Any) -> None:
    _, decoder, ops = native
    whole = Sequences(decoder, ops).step({0: PROMPT})
    sequences = Sequences(decoder, ops)
    sequences.step({1: PROMPT[::-1]})
    parts = [sequences.step({2: PROMPT[:3], 0: PROMPT[:18]})[3:]]
    parts.append(sequences.step({1: [7], 0: PROMPT[18:21], 2: PROMPT[3:20]})[1:4])
    parts.append(sequences.step({0: PROMPT[21:], 1: [9]})[:-1])
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def _int32(values: Any) -> npt.NDArray[np.int32]:
    return np.array(values, np.int32)
