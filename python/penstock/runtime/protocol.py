"""What a runtime is to the engine: it executes plans over rows, cache and weights that it owns."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.config import CPU_STEP_SIZES, StepSizes
from penstock.runtime.adapters import RuntimeAdapters
from penstock.scheduler.types import StepPlan, StepResult


class RuntimeInfo(msgspec.Struct, frozen=True):
    """What a loaded model turned out to be. `max_model_len`: most tokens of a sequence;
    `cache_blocks` blocks of `block_size` tokens hold the keys and values; `weight_bytes` as
    packed or, where that is unknown, as read; `memory_bytes`: of the host's memory, by the formula.
    `overlaps`: it computes while the host does other things, so that a second step may be submitted
    before the first is collected. `cpu_blocks`: of the host, for prefixes that the cache has no
    room for any more, of which a step saves up to `max_saves_per_step`. `sizes`: the largest step."""

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
    """Which tokens the sampled rows of a step may draw; computed while its forward pass runs."""

    def wait(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        """`masks: [M, ceil(V / 32)]`, a set bit allows a token, and `mask_of: [S]`, the index of
        each sampled row's mask or -1. Called once, after the forward pass of a step that samples.
        Valid until the next step."""
        ...


class Runtime(Protocol):
    """One loaded model. Not thread-safe: one thread calls all of it."""

    @property
    def info(self) -> RuntimeInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, one line, for the start-up print."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """None where the settings have no adapters."""

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Apply the plan's changes, compute its chunks, draw the tokens it asks for, of those that
        `masks` allow. What was sampled is to be collected; a runtime that does not overlap takes
        the
        next step only after that.

        A row whose logits are not finite gives `SampledToken.failed`; the other rows are untouched.
        """

    def collect(self) -> StepResult:
        """What the oldest step that was submitted drew, once it is there."""

    def prepare(self) -> bool:
        """A short piece of work that later steps need not do then, for when there is nothing else
        to do. False: there was none."""

    def close(self) -> None:
        """Give memory and threads back; nothing else is called after it."""
