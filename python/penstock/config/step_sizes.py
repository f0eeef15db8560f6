"""The default sizes of a step, by device.

A CPU is busy with few rows. A GPU reads all its weights in every step, so it needs many rows for
throughput, and large chunks of prompts to be bound by arithmetic.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StepSizes(NamedTuple):
    """The largest step: rows (`max_seqs`) and tokens (`token_budget`)."""

    max_seqs: int
    token_budget: int


CPU_SIZES: Final = StepSizes(max_seqs=32, token_budget=512)

GPU_SIZES: Final = (
    StepSizes(max_seqs=256, token_budget=8192),
    StepSizes(max_seqs=128, token_budget=4096),
    StepSizes(max_seqs=64, token_budget=2048),
    CPU_SIZES,
)
"""The first that leaves enough memory to the cache is taken: see `runtime.gpu_memory`."""
