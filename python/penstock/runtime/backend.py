"""The CPU runtime's backend: a decoder over one implementation of the ops."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from penstock.kernels.ops_interface import StepInputs
from penstock.kernels.sampler_inputs import SamplingRows
from penstock.runtime.adapters import RuntimeAdapters

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]


class SamplingOps(Protocol):
    """Samples from logits. Meanings of the arguments: `kernels.sampler_inputs`."""

    def sample(self, logits: Floats, rows: SamplingRows) -> Ints:
        """Sample one token per row of `logits` [S, V], which is modified in place.

        Returns token ids [S]; negative if the row's logits are not finite.
        """

    def top_logprobs(
        self, logits: Floats, rows: Ints, tokens: Ints, count: int
    ) -> tuple[Floats, Ints, Floats]:
        """Return log-probabilities at the rows `rows` [R] of `logits`, either as the model computed
        them or as `sample` left them.

        Returns the log-probability of `tokens`, [R], and ids and log-probabilities of the `count`
        best tokens, [R, count] each.
        """


class Backend(SamplingOps, Protocol):
    """Owns the weights and the KV cache."""

    @property
    def weight_bytes(self) -> int: ...

    @property
    def buffer_bytes(self) -> int:
        """Memory of the activations of one step."""

    @property
    def adapters(self) -> RuntimeAdapters | None:
        """The adapter slots, or None without LoRA settings."""

    def logits(self, inputs: StepInputs[Ints]) -> Floats:
        """Run the forward pass of one step. Return logits [S, V] float32 at `sample_rows`, valid
        until the next call."""

    def prepare(self, used_blocks: int) -> bool:
        """Prepare KV cache memory beyond the first `used_blocks` blocks. See `Runtime.prepare`."""

    def close(self) -> None: ...
