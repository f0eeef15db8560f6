"""The default sizes of a step, by device.

A CPU is busy with few rows. A GPU reads all its weights in every step, so it needs many rows for
throughput, and large chunks of prompts to be bound by arithmetic.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StepSizes(NamedTuple):
    """The largest step: rows (`max_num_seqs`) and tokens (`max_num_batched_tokens`)."""

    max_num_seqs: int
    max_num_batched_tokens: int


CPU_STEP_SIZES: Final = StepSizes(max_num_seqs=32, max_num_batched_tokens=512)

GPU_STEP_SIZES: Final = (
    StepSizes(max_num_seqs=256, max_num_batched_tokens=8192),
    StepSizes(max_num_seqs=128, max_num_batched_tokens=4096),
    StepSizes(max_num_seqs=64, max_num_batched_tokens=2048),
    CPU_STEP_SIZES,
)
"""The first that leaves enough memory to the cache is taken: see `runtime.gpu.memory`."""
