"""What a runtime is to the engine: it executes plans over rows, cache and weights that it owns."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.scheduler.types import StepPlan, StepResult


class RuntimeInfo(msgspec.Struct, frozen=True):
    """What a loaded model turned out to be. `context_tokens`: most tokens of a sequence;
    `cache_blocks` blocks of `block_tokens` tokens hold the keys and values; `weight_bytes` as
    packed or, where that is unknown, as read."""

    model_id: str
    fingerprint: str
    vocab_size: int
    context_tokens: int
    cache_blocks: int
    block_tokens: int
    weight_bytes: int


class Runtime(Protocol):
    """One loaded model. Not thread-safe: one thread calls all of it."""

    @property
    def info(self) -> RuntimeInfo: ...

    @property
    def report(self) -> str:
        """The memory formula with this model's numbers, one line, for the start-up print."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply the plan's changes, compute its chunks, draw the tokens it asks for.

        A row whose logits are not finite gives `Drawn.failed`; the other rows are untouched.
        """

    def close(self) -> None:
        """Give memory and threads back; nothing else is called after it."""
