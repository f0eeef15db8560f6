"""Default limits on the size of a step, for each type of device.

A CPU is busy with a few rows. A GPU reads all weights in every step, so it needs many rows for high
throughput, and large prefill chunks to be compute-bound.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class StepSizes(NamedTuple):
    """The limits of a step: its number of sequences and its number of tokens."""

    max_num_seqs: int
    max_num_batched_tokens: int


CPU_STEP_SIZES: Final = StepSizes(max_num_seqs=32, max_num_batched_tokens=512)

GPU_STEP_SIZES: Final = (
    StepSizes(max_num_seqs=256, max_num_batched_tokens=8192),
    StepSizes(max_num_seqs=128, max_num_batched_tokens=4096),
    StepSizes(max_num_seqs=64, max_num_batched_tokens=2048),
    CPU_STEP_SIZES,
)
"""In order of preference: `runtime.gpu.memory` uses the first entry that leaves room for the KV
cache."""
