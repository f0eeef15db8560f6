"""The interface between engine and runtime.

A runtime executes step plans on one device; vLLM and SGLang call this part the ModelRunner.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.config import CPU_STEP_SIZES, StepSizes
from penstock.runtime.adapters import RuntimeAdapters
from penstock.scheduler.types import StepPlan, StepResult


class RuntimeInfo(msgspec.Struct, frozen=True):
    """Facts of a loaded model.

    `max_model_len`: most tokens of a sequence. `cache_blocks` KV blocks of `block_size` tokens.
    `weight_bytes`: size of the packed weights or, if unknown, of the files. `memory_bytes`: CPU
    memory by the formula. `sizes`: rows and token budget of the largest step. `overlaps`: the
    device computes while the CPU does other work, so a second step may be submitted before the
    first is collected. `cpu_blocks`: blocks of the CPU KV cache; a step saves at most
    `max_saves_per_step` of them.
    """

    model_id: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    cache_blocks: int
    block_size: int
    weight_bytes: int
    memory_bytes: int = 0
    sizes: StepSizes = CPU_STEP_SIZES
    overlaps: bool = False
    cpu_blocks: int = 0
    max_saves_per_step: int = 0


class Masks(Protocol):
    """Token masks of the sampled rows of a step, computed while its forward pass runs."""

    def wait(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        """Return the masks once they are computed. Called once, after the forward pass of a step
        that samples.

        Returns `masks: [M, ceil(V / 32)]`, where a set bit allows a token, and `mask_of: [S]`, the
        index of each sampled row's mask, or -1. Valid until the next step.
        """
        ...


class Runtime(Protocol):
    """One loaded model. Not thread-safe: all calls must come from one thread."""

    @property
    def info(self) -> RuntimeInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, one line for the start-up log."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots, or None without LoRA settings."""

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Execute a plan: apply its changes, compute its prefill and decode chunks, and sample
        tokens that `masks` allow. `collect` returns the result. A runtime that does not overlap
        accepts the next step only after that. A row whose logits are not finite gives
        `SampledToken.failed`; other rows are not affected."""

    def collect(self) -> StepResult:
        """Wait for the oldest submitted step and return its result."""

    def prepare(self) -> bool:
        """Do a short piece of work that later steps would otherwise do, while the engine is idle.
        Return False if there was none."""

    def close(self) -> None:
        """Release memory and threads. No other method may be called afterwards."""
