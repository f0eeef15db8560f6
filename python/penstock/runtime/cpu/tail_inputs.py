"""Describes the sampled tokens of a step as a step of their own, for the layers that only read KV
caches."""

from __future__ import annotations

import numpy as np

from penstock.kernels.step_inputs import StepInputs
from penstock.runtime.backend import Ints


def is_gathered(inputs: StepInputs[Ints]) -> bool:
    """Return whether a step computes tokens of which the layers after the last writer need
    nothing. Steps with media are not divided: their tokens may see later ones."""
    return inputs.media is None and len(inputs.sample_rows) < len(inputs.tokens)


def tail_inputs(inputs: StepInputs[Ints]) -> StepInputs[Ints]:
    """Return the inputs of a step that has only the sampled tokens of `inputs`. Each is a row of
    its own, whose context ends with it."""
    sampled = inputs.sample_rows
    count = len(sampled)
    rows = np.searchsorted(inputs.query_starts, sampled, side="right") - 1
    positions = inputs.positions[sampled]
    return StepInputs(
        tokens=inputs.tokens[sampled],
        positions=positions,
        slots=inputs.slots[sampled],
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=positions + np.int32(1),
        block_tables=inputs.block_tables[rows],
        sample_rows=np.arange(count, dtype=np.int32),
        adapters=inputs.sampled_adapters,
        sampled_adapters=inputs.sampled_adapters,
    )
