"""Describes the sampled tokens of a step as a step of their own, for the layers that only read KV
caches."""

from __future__ import annotations

import numpy as np

from penstock.kernels.step_inputs import AdapterRows, StepInputs
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
    adapters = inputs.sampled_adapters
    if adapters is not None:
        adapters = _grouped_by_sample(adapters, count)
    return StepInputs(
        tokens=inputs.tokens[sampled],
        positions=positions,
        slots=inputs.slots[sampled],
        query_starts=np.arange(count + 1, dtype=np.int32),
        context_lens=positions + np.int32(1),
        block_tables=inputs.block_tables[rows],
        sample_rows=np.arange(count, dtype=np.int32),
        adapters=adapters,
        sampled_adapters=adapters,
        is_prompt=inputs.sampled_is_prompt,
        sampled_is_prompt=inputs.sampled_is_prompt,
    )


def _grouped_by_sample(adapters: AdapterRows[Ints], count: int) -> AdapterRows[Ints]:
    """Return the same groups of `count` sampled tokens for a step that has as many rows: groups
    without tokens are left out, and empty ones follow the others."""
    used = np.flatnonzero(np.diff(adapters.starts))
    slots = np.zeros(count, np.int32)
    slots[: len(used)] = adapters.slots[used]
    starts = np.full(count + 1, adapters.starts[-1], np.int32)
    starts[: len(used)] = adapters.starts[:-1][used]
    return AdapterRows(slots, adapters.order[:count], starts)
