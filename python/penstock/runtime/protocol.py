"""The interface between the engine and a runtime.

A runtime executes step plans on one device or on several tensor-parallel ones. vLLM and SGLang call
this component the ModelRunner.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.config import CPU_STEP_SIZES, StepSizes
from penstock.runtime.adapters import RuntimeAdapters
from penstock.runtime.live_weights import LiveWeights
from penstock.runtime.media import RuntimeMedia
from penstock.scheduler.types import DraftSource, StepPlan, StepResult


class RuntimeInfo(msgspec.Struct, frozen=True):
    """Describes a loaded model.

    `max_model_len`: most tokens of a sequence.
    `cache_blocks`, `block_size`: number of KV blocks, and tokens per block.
    `weight_bytes`: size of the packed weights or, if unknown, of the files.
    `memory_bytes`: CPU memory according to the memory formula.
    `sizes`: most rows of a step, and its token budget.
    `overlaps`: the device computes while the CPU does other work, so a second step may be submitted
    before the first is collected.
    `cpu_blocks`: blocks of the CPU KV cache.
    `max_saves_per_step`: most blocks that a step saves to the CPU KV cache.
    `state_snapshots`: number of snapshots of recurrent states; None if the model has no recurrent
    layers.
    `drafter`: the source of draft tokens that the runtime proposes itself; None: it proposes none.
    `max_drafts`: most draft tokens that it proposes for a sequence in a step.
    `tells_prompts_apart`: prompt tokens have another arithmetic than generated tokens, so a KV
    block of generated tokens cannot serve as one of prompt tokens.
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
    state_snapshots: int | None = None
    drafter: DraftSource | None = None
    max_drafts: int = 0
    tells_prompts_apart: bool = False


class Masks(Protocol):
    """The token masks of the sampled rows of a step, which are computed while its forward pass
    runs."""

    def wait(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]:
        """Wait until the masks are computed and return them. Called once, after the forward pass of
        a step that samples is launched.

        Returns `masks: [M, ceil(V / 32)]`, in which a set bit allows a token, and `mask_of: [S]`,
        the index of the mask of each sampled row, -1 for none. Both are valid until the next step.
        """
        ...


class Runtime(Protocol):
    """A loaded model that executes step plans. Not thread-safe: all calls must come from one
    thread."""

    @property
    def info(self) -> RuntimeInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, in one line for the start-up log."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots, or None without LoRA settings."""

    @property
    def media(self) -> RuntimeMedia | None:
        """The towers, or None for a model that reads only text."""

    @property
    def live_weights(self) -> LiveWeights | None:
        """The weights, if they can be studied and changed while the model serves, else None."""

    def submit(self, plan: StepPlan, masks: Masks | None = None) -> None:
        """Start to execute a plan: apply its changes, compute its chunks, and sample tokens that
        `masks` allow. `collect` returns the result. Unless the runtime overlaps, call `collect`
        before the next `submit`. A row whose logits are not finite gives `SampledToken.failed` and
        does not affect other rows.

        A runtime that overlaps waits for `masks` in the next call of `submit`, or in the call of
        `collect` that returns this step. Until then, the masks may still depend on the result of
        the step before."""

    def collect(self) -> StepResult:
        """Wait for the oldest submitted step and return its result."""

    def prepare(self) -> bool:
        """While the engine is idle, do a short piece of work that a later step would otherwise have
        to do. Return False if there is none."""

    def close(self) -> None:
        """Release memory and threads. No other method may be called afterwards."""
